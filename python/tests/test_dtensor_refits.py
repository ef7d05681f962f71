# SPDX-License-Identifier: Apache-2.0
"""Protects: a Refit between the meshes of a trainer and of an engine brings every tensor of a model, bit by bit, to
where torch.chunk cuts it; and what does not fit is an error on every rank. Ranks are threads, up to 24 of them."""

import pytest

torch = pytest.importorskip("torch")

import small_models  # noqa: E402
from ranks import errors_in_threads, in_threads  # noqa: E402
from refit_models import BF16, FP8, Side, full_tensors, fused, same, shards  # noqa: E402

import reshard  # noqa: E402
from reshard import dtensor  # noqa: E402

LAYERS = 2
# Kind of model, key and value heads, trainer, engine. Trainers' experts are whole on an expert mesh, whose ranks
# are those of the dense mesh in another order; engines cut each expert.
CASES = {
  "dense dp2 to dp2": ("dense", 8, Side(dp=2), Side(2, dp=2)),
  "dense tp2 to tp4": ("dense", 4, Side(tp=2), Side(2, tp=4)),
  "dense pp2 to tp2": ("dense", 4, Side(pp=2), Side(2, tp=2)),
  "dense tp2 pp2 to tp4": ("dense", 4, Side(tp=2, pp=2), Side(4, tp=4)),
  "fp8 tp2 dp4 to tp4 dp2": ("fp8", 4, Side(tp=2, dp=4), Side(8, tp=4, dp=2)),
  "fp8 dp2 to dp2": ("fp8", 4, Side(dp=2), Side(2, dp=2)),
  "moe ep8 to tp4": ("moe", 4, Side(dp=8, ep=8), Side(8, tp=4)),
  "moe ep4 tp2 to tp4": ("moe", 4, Side(tp=2, dp=2, ep=4), Side(4, tp=4)),
  "moe ep4 tp2 pp2 to tp4": ("moe", 4, Side(tp=2, dp=2, pp=2, ep=4), Side(8, tp=4)),
  "moe ep8 pp2 to tp8, fewer heads": ("moe", 4, Side(dp=8, pp=2, ep=8), Side(16, tp=8, kv_heads=4)),
  "moe ep4 to dp2": ("moe", 4, Side(dp=4, ep=4), Side(4, dp=2)),
  "moe ep4 tp2 to tp4, same ranks": ("moe", 4, Side(tp=2, dp=2, ep=4), Side(tp=4)),
  "hybrid ep2 tp2 to tp2": ("hybrid", 4, Side(tp=2, ep=2), Side(2, tp=2)),
  "hybrid tp8 ep8 to tp8, heads in parts": ("hybrid", 2, Side(tp=8, ep=8), Side(8, tp=8)),
  "latent ep4 pp2 to dp4, nothing cut": ("latent", 0, Side(dp=4, pp=2, ep=4), Side(8, dp=4)),
  "latent ep8 tp8 to tp4": ("latent", 0, Side(tp=8, ep=8), Side(8, tp=4)),
}  # fmt: skip


def placing(side):
  return lambda name, _: side.place(name, LAYERS)[0]


@pytest.mark.parametrize("case", CASES)
def test_every_tensor_arrives_where_the_engine_cuts_it(case):
  kind, heads, trainer, engine = CASES[case]
  full = full_tensors(kind, LAYERS, heads)

  def rank(group):
    source = shards(full, trainer, LAYERS, group.rank)
    wanted = shards(full, engine, LAYERS, group.rank)
    target = None if wanted is None else fused({n: torch.zeros_like(t) for n, t in wanted.items()})
    options = {"source_place": placing(trainer), "target_place": placing(engine), "verify": "always"}
    with dtensor.Refit(source, target, group, **options) as refit:
      for step in (1, 2):
        refit()
        for name, value in (wanted or {}).items():
          assert same(target[name], value * step if value.dtype == BF16 else value), (step, name)
        # Stacks of experts are made anew in each step; other tensors change in place.
        for name, tensor in (source or {}).items():
          if tensor.dtype == BF16:
            source[name] = tensor * 2 if ".experts." in name else tensor.mul_(2)
    return len(wanted or ())

  size = max(*trainer.ranks, *engine.ranks) + 1
  counts = in_threads(size, rank)
  assert all(counts[r] == len(full) for r in engine.ranks)


def refused(source, target, size=4, **options):
  """The messages of a Refit that every rank refuses."""
  errors = errors_in_threads(size, lambda group: dtensor.Refit(source(group.rank), target(group.rank), group, **options))
  assert all(isinstance(error, reshard.Error) for error in errors), errors
  return [str(error) for error in errors]


TRAINER, ENGINE = Side(tp=2), Side(2, tp=2)
BOTH = {"source_place": placing(TRAINER), "target_place": placing(ENGINE)}


def sides(source=lambda held: held, target=lambda held: held, kind="moe"):
  """A trainer and an engine; functions change what they hold."""
  full = full_tensors(kind, LAYERS, 4)

  def of(side, change):
    def held(rank):
      found = shards(full, side, LAYERS, rank)
      return None if found is None else change(found)

    return held

  return of(TRAINER, source), of(ENGINE, target)


def without(name):
  return lambda held: {n: t for n, t in held.items() if n != name}


@pytest.mark.parametrize("name", ["model.layers.1.mlp.experts.up_proj", "model.layers.0.mlp.gate.weight", "model.norm.weight"])
def test_a_tensor_that_one_side_lacks_is_refused_by_name(name):
  for source, target in (sides(source=without(name)), sides(target=without(name))):
    assert all(name in message for message in refused(source, target, **BOTH))


def test_values_that_need_quantising_are_refused():
  """A router that the trainer has in BF16 and the engine in FP8, say."""
  router = "model.layers.0.mlp.gate.weight"
  source, target = sides(target=lambda held: held | {router: held[router].to(FP8)})
  assert all("converted between F32, BF16 and F16 only" in message for message in refused(source, target, **BOTH))


def test_a_rank_that_lacks_its_part_is_refused():
  """Of a weight that is cut over two ranks, the second has not got its half."""
  name = "model.layers.0.mlp.down_proj.weight"

  def second_lacks(rank):
    held = shards(full_tensors("dense", LAYERS, 4), TRAINER, LAYERS, rank)
    return without(name)(held) if rank == 1 else held

  assert all(name in message for message in refused(second_lacks, sides(kind="dense")[1], **BOTH))


def test_a_stack_of_other_experts_is_refused():
  name = "model.layers.0.mlp.experts.down_proj"
  source, target = sides(source=lambda held: held | {name: held[name][:4].clone()})
  assert all(name in message for message in refused(source, target, **BOTH))


def test_other_names_for_layers_are_mapped():
  """`backbone.layers.0...` and `embeddings` of a trainer are the engine's `model.layers.0...`."""
  full = full_tensors("hybrid", LAYERS, 4)
  names = {"backbone.embeddings.weight": "model.embed_tokens.weight", "backbone.*": "model.$1"}

  def own(name):
    return name.replace("model.embed_tokens", "backbone.embeddings").replace("model.", "backbone.", 1)

  def place(name, _):
    return TRAINER.place(name.replace("backbone.embeddings", "model.embed_tokens"), LAYERS)[0]

  def rank(group):
    source = shards(full, TRAINER, LAYERS, group.rank)
    source = None if source is None else {own(n): t for n, t in source.items()}
    wanted = shards(full, ENGINE, LAYERS, group.rank)
    target = None if wanted is None else {n: torch.zeros_like(t) for n, t in wanted.items()}
    options = {"source_names": names, "source_place": place, "target_place": placing(ENGINE)}
    with dtensor.Refit(source, target, group, **options) as refit:
      refit()
    assert all(same(target[n], value) for n, value in (wanted or {}).items())

  in_threads(4, rank)


@pytest.mark.parametrize(
  ("kind", "source", "target"),
  [("dense", "megatron:tp=2,pp=2", "vllm:tp=4,offset=4"), ("moe", "megatron:tp=2,ep=4,etp=1,dp=2", "vllm:tp=4,offset=4")],
)
def test_layouts_say_what_lies_on_both_sides(kind, source, target):
  """A KV scale, which the model does not have, is found by its name."""
  model = small_models.model(kind)
  source, target = (reshard.layout(text, model) for text in (source, target))
  values = small_models.values(model)
  scale = "model.layers.0.self_attn.k_scale"
  trained = {rank: small_models.zeros(source, rank) for rank in source.ranks}
  one = reshard.layout("hf", model)
  buffers = [reshard.RankBuffers(one, {0: values}), reshard.RankBuffers(source, trained)]
  reshard.InProcessRefit(reshard.plan(one, source), *buffers).run()

  def rank(group):
    mine, served = trained.get(group.rank), None
    if group.rank in target.ranks:
      served = small_models.zeros(target, group.rank, fill=7) | {scale: torch.zeros(1)}
    if mine is not None:
      mine = mine | {scale: torch.tensor([0.5])}
    with dtensor.Refit(mine, served, group, model=model, source_layout=source, target_layout=target) as refit:
      assert len(refit()) == 2
    return served

  for at, served in enumerate(in_threads(8, rank)[4:]):
    assert served.pop(scale) == 0.5
    small_models.assert_equal(served, small_models.vllm_slices(values, 4, at))
