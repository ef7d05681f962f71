# SPDX-License-Identifier: Apache-2.0
"""Protects: the closed form `sglang` and the layout cards of SGLang say what SGLang's own classes and loaders leave
on each rank, at sizes and of models that learning never saw. Needs SGLang (`make frameworks-test`)."""

import json
import pathlib
import re
import subprocess
import sys

import frameworks  # noqa: F401 - lets torchvision be imported
import pytest
import torch
from safetensors.torch import load_file

import reshard
from reshard import _manifest as manifest
from reshard.engines.invitation import Invitation

pytest.importorskip("sglang")

from reshard.learn import sglang as teacher  # noqa: E402
from reshard.learn.__main__ import checkpoint  # noqa: E402
from reshard.learn.models import tiny  # noqa: E402
from reshard.sglang.models import UpdatedModel  # noqa: E402
from reshard.tracing import sglang as tracing  # noqa: E402

CARDS = sorted(p.stem for p in (pathlib.Path(__file__).parents[2] / "examples/cards/sglang").glob("*.json"))
# Other sizes than those of the three models with which cards are learned and proved.
OTHER = tiny.Sizes(24, 8, 16, 192, 384, 5, 700, 8, 144)

DENSE = ({"tp": 2}, {"tp": 4}, {"pp": 3}, {"tp": 2, "pp": 2})
EXPERTS = ({"tp": 2}, {"tp": 4, "ep": 2}, {"tp": 4, "ep": 4}, {"pp": 3})
WITH_DP = ({"tp": 4, "dp": 2}, {"tp": 4, "dp": 4, "ep": 2}, {"tp": 4, "dp": 2, "ep": 4})
# The classes that have a family, but for Nemotron-H, whose config SGLang does not read as transformers 5 writes it.
FAMILIES = {
  "LlamaForCausalLM": DENSE,
  "MistralForCausalLM": DENSE,
  "Qwen2ForCausalLM": DENSE,
  "Qwen3ForCausalLM": (*DENSE, {"tp": 4, "dp": 2}),
  "Qwen3MoeForCausalLM": (*EXPERTS, *WITH_DP),
  "Qwen3NextForCausalLM": ({"tp": 2}, {"tp": 4, "ep": 2}, *WITH_DP),
  "MixtralForCausalLM": EXPERTS,
  "DeepseekV3ForCausalLM": (*EXPERTS, *WITH_DP),
  "Glm4MoeForCausalLM": (*EXPERTS, *WITH_DP),
  "GptOssForCausalLM": ({"tp": 2}, {"tp": 4, "dp": 2}, {"pp": 3}),
  "Gemma3ForCausalLM": ({"tp": 2}, {"tp": 4}),
}
SAMPLE = ["ArceeForCausalLM", "GPT2LMHeadModel", "Qwen2MoeForCausalLM", "Qwen2_5_VLForConditionalGeneration"]


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch):
  monkeypatch.setenv("RESHARD_CACHE", "off")


def text_of(sizes):
  return ",".join(f"{k}={v}" for k, v in sizes.items())


@pytest.mark.parametrize("name", FAMILIES)
def test_the_family_says_what_sglang_holds(tmp_path, name):
  folder = checkpoint(tmp_path / "model", name, tiny.SEEN[1])
  model = reshard.open_model(folder)
  for sizes in ({}, *FAMILIES[name]):
    ours = reshard.layout(f"sglang:{text_of(sizes)}" if sizes else "sglang", model)
    theirs = tracing.layout(folder, prove=sizes == {"tp": 2}, **sizes)
    assert [str(d) for d in reshard.diff(theirs, ours)] == [], sizes


def tensors_of(module):
  """All tensors that its parts hold, registered or not."""
  found = {}
  for at, part in module.named_modules():
    for name, value in {**part.__dict__, **part._parameters, **part._buffers}.items():
      if isinstance(value, torch.Tensor):
        found[f"{at}.{name}"] = value.detach().clone()
  return found


@pytest.mark.parametrize(("name", "derived"), [("Qwen3NextForCausalLM", "gemma_weight"), ("Glm4MoeLiteForCausalLM", "w_kc")])
def test_a_live_update_derives_what_the_loader_derives(tmp_path, name, derived):
  """Workers get their parts of the parameters; w_kc, w_vc and 1 + weight follow."""
  torch.manual_seed(0)
  folder = checkpoint(tmp_path / "model", name, tiny.SEEN[0])
  first = load_file(folder / "model.safetensors")
  second = {n: torch.randn(t.shape).to(t.dtype) for n, t in first.items()}  # norms are all ones in the first
  table = manifest.table_of(reshard.open_model(folder))
  invitation = Invitation(
    url="", job="", secret="", trainers=1, engines=[2], transport="", deadline=1.0, route="local", in_place=True,
    verify=False, tensors=table, config="",
  )  # fmt: skip
  engine = tracing.SglangRanks(tracing.engine_config(folder, tp=2))
  for rank in range(2):
    with engine.module(rank) as loaded, torch.no_grad():
      loaded.load_weights(second.items())
      wanted = tensors_of(loaded)
    with engine.module(rank) as live, torch.no_grad():
      live.load_weights(first.items())
      before = tensors_of(live)
      updated = UpdatedModel(live, invitation, rank)
      assert updated.is_known
      updated.apply({entry["name"]: wanted[entry["name"]] for entry in updated.holds})
      updated.derive()
      after = tensors_of(live)
    assert after.keys() == wanted.keys() and any(n.endswith(derived) for n in after)
    assert all(torch.equal(after[n], wanted[n]) for n in wanted)
    assert not any(torch.equal(before[n], after[n]) for n in wanted if n.endswith(derived))


def test_there_are_cards():
  assert len(CARDS) > 50 and set(SAMPLE) < set(CARDS)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_card_says_what_sglang_holds(tmp_path, name):
  """Of another model, at the sizes that the card takes."""
  folder = checkpoint(tmp_path / "model", name, OTHER)
  model = reshard.open_model(folder)
  card = json.loads((pathlib.Path(__file__).parents[2] / f"examples/cards/sglang/{name}.json").read_text())
  refused = {r["that"] for r in card["require"]}
  sizes = [{"tp": 2}, {"tp": 4}]
  sizes += [] if "pp == 1" in refused else [{"tp": 2, "pp": 2}]
  sizes += [] if "ep == 1" in refused else [{"tp": 4, "ep": 2}]
  sizes += [] if refused & {"dp == 1", "ep == 1"} else [{"tp": 4, "dp": 2}, {"tp": 4, "dp": 4, "ep": 2}]
  for one in sizes:
    ours = reshard.layout(f"sglang:{text_of(one)}", model)
    assert [str(d) for d in reshard.diff(teacher.layout_of(folder, one), ours)] == [], one


def test_the_refusal_of_a_class_without_a_card_names_a_notation_that_works(tmp_path, monkeypatch):
  folder = checkpoint(tmp_path / "model", "LagunaForCausalLM", tiny.SEEN[0])
  assert "LagunaForCausalLM" not in CARDS
  monkeypatch.setenv("RESHARD_PYTHON", sys.executable)
  model = reshard.open_model(folder)
  with pytest.raises(reshard.UnsupportedError) as refused:
    reshard.layout("sglang:tp=2", model)
  (notation,) = re.findall(r"(traced:sglang\S*) asks the engine's own loader", str(refused.value))
  traced = reshard.layout(notation, model)
  assert len(traced.ranks) == 2
  assert [str(d) for d in reshard.diff(traced, tracing.layout(folder, tp=2))] == []
  with pytest.raises(reshard.InvalidArgumentError, match="unknown key 'tpp'; known are tp, pp, dp, ep, offset"):
    reshard.layout("traced:sglang,tpp=2", model)


def test_a_world_that_is_in_use_is_left_alone(tmp_path):
  folder = checkpoint(tmp_path / "model", "LlamaForCausalLM", tiny.SEEN[0])
  said = subprocess.run(
    [sys.executable, "-c", f"""
import torch.distributed as d
d.init_process_group("gloo", init_method="file://{tmp_path}/store", rank=0, world_size=1)
from reshard.tracing import sglang
try:
  sglang.layout("{folder}")
except Exception as error:
  print("refused:", error, d.get_world_size())
"""],
    capture_output=True, text=True,
  )  # fmt: skip
  assert "refused: torch.distributed is in use" in said.stdout, said.stderr
