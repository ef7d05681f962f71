# SPDX-License-Identifier: Apache-2.0
"""Protects: a tied tensor arrives under any of its names and nowhere else; two different tensors never go into one
memory, and none is left out without a word."""

import json
import random

import pytest

torch = pytest.importorskip("torch")

from ranks import errors_in_threads, in_threads  # noqa: E402

import reshard  # noqa: E402
import reshard.dcp  # noqa: E402
from reshard import dtensor  # noqa: E402

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def refit(source, target, **options):
  def rank(group):
    with dtensor.Refit(source, target, group, **options) as made:
      made()

  in_threads(1, rank)


def refused(source, target, **options):
  (error,) = errors_in_threads(1, lambda group: dtensor.Refit(source, target, group, **options))
  assert isinstance(error, reshard.Error), error
  return str(error)


def grouped(names, draw):
  """Tensors under random names, several for some; {name: tensor}, in random order."""
  memory = [torch.full((2, 3), -1.0) for _ in range(draw.randint(1, 3))]
  found = {name: draw.choice(memory) for name in names if draw.random() < 0.8}
  order = list(found)
  draw.shuffle(order)
  # state_dict() makes an object for each name.
  return {name: found[name].detach() if draw.random() < 0.5 else found[name] for name in order}


def names_by_memory(tensors):
  found = {}
  for name, tensor in tensors.items():
    found.setdefault(tensor.data_ptr(), set()).add(name)
  return found


def expected(source, target):
  """Which memory of the source each of the target gets, by one of its names; None if the refit must be refused."""
  wanted = {}
  for names in names_by_memory(target).values():
    gives = {source[n].data_ptr() for n in names if n in source}
    if len(gives) != 1:
      return None
    wanted[min(names)] = gives.pop()
  return wanted if set(wanted.values()) == set(names_by_memory(source)) else None


def test_random_ties_on_both_sides_are_taken_as_they_are_or_refused():
  counts = {True: 0, False: 0}
  for seed in range(200):
    draw = random.Random(seed)
    names = ["a", "b", "c", "d"]
    source, target = grouped(names, draw), grouped(names, draw)
    if not source or not target:
      continue
    for i, place in enumerate(names_by_memory(source)):
      next(t for t in source.values() if t.data_ptr() == place).fill_(i + 1)
    wanted = expected(source, target)
    counts[wanted is None] += 1
    if wanted is None:
      assert "Refit: " in refused(source, target), seed
      continue
    refit(source, target)
    for name, place in wanted.items():
      given = next(t for t in source.values() if t.data_ptr() == place)
      assert torch.equal(target[name], given), (seed, name)
  assert min(counts.values()) > 20


def test_two_tensors_for_one_memory_are_refused_by_name_and_ignore_says_which():
  tied = torch.zeros(4, 2)
  target = {"embed": tied, "head": tied.detach()}
  source = {"embed": torch.full((4, 2), 1.0), "head": torch.full((4, 2), 2.0)}
  assert "'embed' and 'head' are one tied tensor of the target" in refused(source, target)
  for left_out, value in (("head", 1.0), ("embed", 2.0)):
    refit(source, target, ignore=left_out)
    assert torch.equal(tied, torch.full((4, 2), value))
  refit({"embed": source["embed"]}, target)
  assert torch.equal(tied, source["embed"])
  refit(source, target, source_names={"embed": None})
  assert torch.equal(tied, source["head"])


def test_only_what_is_named_moves():
  source = {"a.x": torch.ones(2), "a.y": torch.full((2,), 2.0), "b": torch.full((2,), 3.0), "mine": torch.ones(1)}
  target = {"a.x": torch.zeros(2), "a.y": torch.zeros(2), "b": torch.zeros(2), "yours": torch.zeros(1)}
  refit(source, target, only="a.*")
  assert target["a.x"][0] == 1 and target["a.y"][0] == 2 and target["b"][0] == 0
  refit(source, target, only=["b", "a.y"], ignore="a.x")
  assert target["b"][0] == 3
  assert "only='a.z' matches no tensor" in refused(source, target, only=["a.x", "a.z"])


def test_missing_tensors_are_not_tied_to_each_other():
  source = {"a": torch.ones(2), "b": torch.full((2,), 2.0)}
  target = {"a": torch.zeros(2), "b": torch.zeros(2), "c": None, "d": None}
  refit(source | {"c": None, "d": None}, target)
  assert target["a"][0] == 1 and target["b"][0] == 2


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
  """Checkpoints of a small model, with tied embeddings and without; and their tensors."""
  transformers = pytest.importorskip("transformers")
  found = {}
  for tied in (True, False):
    config = transformers.Qwen3Config(
      vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
      num_key_value_heads=1, head_dim=8, tie_word_embeddings=tied,
    )  # fmt: skip
    torch.manual_seed(1)
    module = transformers.AutoModelForCausalLM.from_config(config)
    folder = tmp_path_factory.mktemp("model")
    module.save_pretrained(folder)
    found[tied] = folder, module
  return found


def zeroed(module, tied):
  """The state dict of a model of the same kind without values; `tied`: head and embedding are one."""
  state = {name: torch.zeros_like(tensor) for name, tensor in module.state_dict().items()}
  if tied:
    state[HEAD] = state[EMBED].detach()
  return state


@pytest.mark.parametrize("into", [True, False], ids=["into tied", "into untied"])
def test_with_a_model_the_head_is_the_embedding_where_the_config_ties_it(folders, into):
  folder, module = folders[True]
  model = reshard.open_model(folder)
  assert model.tied == {HEAD: EMBED}
  state = module.state_dict()
  assert set(state) > {HEAD, EMBED}
  for source in (module, state, {n: t for n, t in state.items() if n != HEAD}):
    target = zeroed(module, into)
    refit(source, target, model=model)
    assert all(torch.equal(target[name], tensor) for name, tensor in state.items())


def test_with_a_model_only_what_is_named_moves(folders):
  folder, module = folders[False]
  model = reshard.open_model(folder)
  state = module.state_dict()
  target = zeroed(module, False)
  refit(module, target, model=model, only="model.layers.*")
  for name, tensor in state.items():
    wanted = tensor if name.startswith("model.layers.") else torch.zeros_like(tensor)
    assert torch.equal(target[name], wanted), name


def test_with_a_model_an_untied_head_does_not_go_into_the_embedding(folders):
  for tied in (True, False):
    folder, module = folders[tied]
    model = reshard.open_model(folder)
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    state[HEAD] += 1
    target = zeroed(module, True)
    message = refused(state, target, model=model)
    assert EMBED in message and HEAD in message
    refit(state, target, model=model, ignore=HEAD)
    assert torch.equal(target[EMBED], state[EMBED])


def test_of_dtensors_takes_a_second_name_of_the_same_memory_and_no_other(folders):
  folder, module = folders[True]
  model = reshard.open_model(folder)
  state = module.state_dict()
  layout = reshard.of_dtensors(state, model)
  assert {t.name for t in layout.local(0)} == set(state)
  with pytest.raises(reshard.NotFoundError, match=HEAD):
    reshard.of_dtensors({**state, HEAD: state[EMBED].clone()}, model)
  named = reshard.of_dtensors({**state, HEAD: state[EMBED].clone()}, model, names={HEAD: EMBED})
  assert {t.name for t in named.local(0)} == set(state)


def load(path, state):
  torch.distributed.checkpoint.load(state, storage_reader=reshard.dcp.StorageReader(path))


def test_dcp_load_fills_a_tied_and_an_untied_state_dict(folders):
  folder, module = folders[True]
  want = module.state_dict()
  for tied in (True, False):
    have = zeroed(module, tied)
    load(folder, have)
    assert all(torch.equal(have[name], tensor) for name, tensor in want.items())


def test_dcp_load_refuses_an_untied_checkpoint_for_a_tied_state_dict(folders):
  folder, module = folders[False]
  with pytest.raises(torch.distributed.checkpoint.api.CheckpointException, match="differ in the checkpoint"):
    load(folder, zeroed(module, True))


def test_a_checkpoint_that_stores_both_equal_is_loaded_into_a_tied_state_dict(folders, tmp_path):
  _, module = folders[True]
  (tmp_path / "config.json").write_text(json.dumps({**module.config.to_dict(), "tie_word_embeddings": False}))
  from safetensors.torch import save_file

  save_file({name: tensor.clone() for name, tensor in module.state_dict().items()}, tmp_path / "model.safetensors")
  have = zeroed(module, True)
  load(tmp_path, have)
  assert torch.equal(have[HEAD], module.state_dict()[EMBED])
