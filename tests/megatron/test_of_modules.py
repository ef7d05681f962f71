# SPDX-License-Identifier: Apache-2.0
"""The layout of Megatron-Core's own modules is the family's closed form: what parameters say of
themselves, rank by rank, against the rules of docs/layouts.md."""

import gloo_rank
import pytest
import torch
from building import build, opened
from serving import run, serving
from test_modules import ALL, MODELS, STATE, keys_of
from world import rank_of

import reshard
from reshard.live._megatron import of_descriptions
from reshard.live._modules import held_by, module_tensors, values_of

# As the modules of models.py are: those of the local spec, without centred norms.
DIALECT = "norms=separate,experts=sequential,mamba_names=old,gamma=plain"


def described(model, text, world):
  """What each rank says; the ranks are made one after the other."""
  keys = keys_of(text)
  state = {STATE[k]: v for k, v in keys.items() if k in STATE}
  state |= {"order": keys["order"]} if "order" in keys else {}
  said = []
  for rank in range(world):
    with rank_of(world, rank, **state):
      modules = build(model, text)
      said.append({"held": [held.pack() for held in held_by(modules)], "keys": values_of(modules)})
      names = list(module_tensors(modules))
      assert names == [held.name for held in held_by(modules)]
  return said


@pytest.mark.parametrize(("name", "text"), ALL, ids=lambda value: value or "one")
def test_modules_have_the_layout_of_the_closed_form(name, text, tmp_path):
  model = opened(MODELS[name], tmp_path)
  closed = reshard.layout("megatron:" + ",".join(filter(None, [text, DIALECT])), model)
  said = described(MODELS[name], text, len(closed.ranks))
  layout = of_descriptions(said, model)
  assert layout.ranks == closed.ranks
  assert [str(difference) for difference in reshard.diff(layout, closed)] == []


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
  with serving(gloo_rank.serve, 2, tmp_path_factory.mktemp("store")) as pipes:
    yield pipes


def test_a_session_fills_live_modules_from_a_checkpoint(processes, tmp_path):
  opened(MODELS["qwen3-moe"], tmp_path)
  found = run(processes, "through_modules", tmp_path, "qwen3-moe", ["tp=2", "ep=2", "pp=2"])
  for rank, (held, values) in enumerate(found):
    layer = "model.layers.0."
    rows = slice(24 * rank, 24 * rank + 24)
    fc1 = torch.cat([values[f"{layer}mlp.{part}_proj.weight"][rows] for part in ("gate", "up")])
    assert torch.equal(held["decoder.layers.0.mlp.linear_fc1.weight"], fc1)
    fc2 = values[layer + "mlp.down_proj.weight"][:, rows]
    assert torch.equal(held["decoder.layers.0.mlp.linear_fc2.weight"], fc2)
    q, k, v = (values[f"{layer}self_attn.{part}_proj.weight"].unflatten(0, (4, -1)) for part in "qkv")
    qkv = torch.cat([q, k, v], 1)[2 * rank : 2 * rank + 2].flatten(0, 1)
    assert torch.equal(held["decoder.layers.0.self_attention.linear_qkv.weight"], qkv)


@pytest.mark.parametrize(
  ("name", "texts"),
  [("deepseek", ["tp=2", "pp=2", "ep=2"]), ("qwen2", ["pp=2,vpp=2", "tp=2"]), ("nemotron", ["tp=2", "pp=2"])],
)
def test_modules_without_a_known_model_are_refitted_by_their_own_names(processes, name, texts):
  for held, values in run(processes, "through_modules", None, name, texts):
    assert len(values) > 10 and all(tensor.any() for tensor in held.values())


@pytest.mark.parametrize(("name", "text"), [("qwen3-moe", "ep=2"), ("qwen3-moe", "tp=2"), ("qwen2", "pp=2,vpp=2")])
def test_a_refit_of_modules_takes_their_layout_as_the_source(processes, tmp_path, name, text):
  opened(MODELS[name], tmp_path)
  assert min(run(processes, "refit_of_modules", tmp_path, name, text, "vllm:tp=2")) > 10


def test_what_is_wrong_on_one_rank_is_told_to_all(processes):
  said = run(processes, "refused", "llama")
  assert said[1][0] == "InvalidArgumentError: module 0: a int is no module of torch"
  assert said[0][0] == "InvalidArgumentError: of_modules: rank 1: module 0: a int is no module of torch"
  assert all("no rank holds a tensor" in both[1] for both in said)


def test_a_tensor_that_does_not_fit_the_model_is_named(tmp_path):
  model = opened(MODELS["llama"], tmp_path)
  said = described(MODELS["llama"], "tp=2", 2)
  for of_rank in said:
    for held in of_rank["held"]:
      if held[0] == "decoder.layers.2.mlp.linear_fc2.weight":
        held[3], held[4] = [32, 24], [None, None]
  with pytest.raises(reshard.InvalidArgumentError, match=r"'decoder.layers.2.mlp.linear_fc2.weight'.*\[32, 24\]"):
    of_descriptions(said, model)
  said[0]["held"][0][1] = "decoder.unknown"
  with pytest.raises(reshard.NotFoundError, match="'decoder.unknown'"):
    of_descriptions(said, model)


class Parts(torch.nn.Module):
  """Stands for a model of newer releases, which names the parts that are refitted itself."""

  def __init__(self, language):
    super().__init__()
    self.language, self.head = language, torch.nn.Linear(4, 2)

  def refit_modules(self):
    return [("language", self.language, self.language.pg_collection)]


class Wrapper(torch.nn.Module):
  """Stands for DistributedDataParallel and Float16Module."""

  def __init__(self, module):
    super().__init__()
    self.module = module


def test_wrappers_are_taken_off_and_parts_have_labels():
  with rank_of(2, 1, tensor_model_parallel_size=2):
    (module,) = build(MODELS["llama"], "tp=2")
    plain = held_by([module])
    assert held_by(Wrapper(Wrapper(module))) == plain
    named = held_by([Wrapper(Parts(module))])
  assert [held.name for held in named] == ["language." + held.name for held in plain]
  assert [held.whole for held in named] == ["language." + held.whole for held in plain]
  assert [held.runs for held in named] == [held.runs for held in plain]


def test_attributes_decide():
  """A stride, sizes of blocks, a dimension and a missing attribute each change what a rank holds."""
  with rank_of(2, 1, tensor_model_parallel_size=2):
    (module,) = build(MODELS["llama"], "tp=2")
    layer = module.decoder.layers[0]

    def runs_of(name):
      return {held.name: (held.shape, held.runs) for held in held_by(module)}["decoder.layers.0." + name]

    assert runs_of("mlp.linear_fc1.weight") == ((96, 32), (((24, 48), (72, 96)), ((0, 32),)))
    weight = layer.self_attention.linear_qkv.weight
    assert runs_of("self_attention.linear_qkv.weight") == ((64, 32), (((32, 64),), ((0, 32),)))
    weight.partition_stride = 4
    assert runs_of("self_attention.linear_qkv.weight")[1][0] == ((8, 16), (24, 32), (40, 48), (56, 64))
    weight.partition_sizes = [24, 8]
    assert runs_of("self_attention.linear_qkv.weight")[1][0] == ((24, 48), (56, 64))
    weight.tensor_model_parallel = False
    assert runs_of("self_attention.linear_qkv.weight") == ((32, 32), (((0, 32),), ((0, 32),)))
    layer.mlp.linear_fc2.weight.partition_dim = 0
    assert runs_of("mlp.linear_fc2.weight") == ((64, 24), (((32, 64),), ((0, 24),)))
    weight.tensor_model_parallel = True
    weight.partition_sizes = [24, 9]
    with pytest.raises(reshard.InvalidArgumentError, match=r"linear_qkv.weight': blocks \[24, 9\]"):
      held_by(module)


@pytest.mark.parametrize("said", ["nothing", "megatron's defaults", "dimension 0"])
def test_expert_tensor_parallelism_cuts_fc2_by_columns_whatever_attributes_say(said):
  """TEGroupedLinear cuts sizes itself; releases then give its weights no attributes, or dimension 0 on both."""
  with rank_of(2, 1, tensor_model_parallel_size=2, expert_tensor_parallel_size=2):
    (module,) = build(MODELS["qwen3-moe"], "tp=2,etp=2")
    wanted = held_by(module)
    experts = [(n, p) for n, p in module.named_parameters() if ".experts." in n]
    assert {p.partition_dim for n, p in experts if "linear_fc2" in n} == {1}
    for _, parameter in experts:
      for name in ("tensor_model_parallel", "partition_dim", "partition_stride"):
        delattr(parameter, name)
      if said != "nothing":
        parameter.tensor_model_parallel = said == "dimension 0"
        parameter.partition_dim = 0 if parameter.tensor_model_parallel else -1
        parameter.partition_stride = 1
    assert held_by(module) == wanted


def test_persistent_buffers_are_held_and_others_are_not():
  with rank_of(1, 0):
    (module,) = build(MODELS["deepseek"], "")
    names = set(module_tensors(module))
    buffers = {name for name, _ in module.named_buffers()}
  assert {name for name in names if name.endswith("router.expert_bias")} == buffers & names
  assert any(name.endswith("local_tokens_per_expert") for name in buffers - names)
