# SPDX-License-Identifier: Apache-2.0
"""GPTQ whose modules differ, as GPTQModel's `dynamic` lets them: each module is decoded with the bits and groups of those that
the config names which its parts fit, and what fits none or two of them is refused by name."""

import json

import pytest
import torch

from code_forms import gptq, gptq_dynamic, scales
from dense_model import CONFIG, LAYER, MATRICES, VECTORS
from folders import command, ranks, read, same, write

PARTS_OF, RULES = gptq_dynamic()
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True, "sym": False, "dynamic": RULES}
HALF = {**CONFIG, "dtype": "float16"}
TEXT = "gptq, 4 bits in groups of 32 or 8 bits or 4 bits in groups of 16 or 3 bits in groups of 32"


def checkpoint(parts_of=PARTS_OF):
  """(tensors, values)."""
  shapes = {"model.embed_tokens": (32, 64), "model.norm": (64,), "lm_head": (32, 64)}
  shapes |= {LAYER + name: (size,) for name, size in VECTORS.items()}
  tensors = {name + ".weight": scales(*shape) for name, shape in shapes.items()}
  values = dict(tensors)
  for name, shape in MATRICES.items():
    parts, value = parts_of(*shape, name="." + name)
    tensors |= {LAYER + name + part: t.contiguous() for part, t in parts.items()}
    # A decoded tensor has the model's dtype; a plain one keeps its own.
    values[LAYER + name + ".weight"] = (value if ".weight" in parts else value.to(torch.float16)).contiguous()
  return tensors, values


def folder_of(folder, tensors, section=GPTQ):
  return write(folder, tensors, {**HALF, "quantization_config": section})


@pytest.mark.parametrize("first", [True, False])
def test_each_module_has_its_own_bits_and_groups(first, tmp_path):
  parts_of, _ = gptq_dynamic(first)
  tensors, values = checkpoint(parts_of)
  section = GPTQ if first else {**GPTQ, "checkpoint_format": "gptq_v2"}
  folder = folder_of(tmp_path / "in", tensors, section)
  said = command("convert", folder, tmp_path / "plain", "--to", "hf")
  assert f"6 tensors decoded from {TEXT if first else TEXT.replace('gptq', 'gptq_v2')}" in said, said
  same(read(tmp_path / "plain"), values)
  assert json.loads((tmp_path / "plain/config.json").read_text()) == HALF
  command("verify", folder, tmp_path / "plain")


@pytest.mark.parametrize("layout", ["hf", "hf:shards=2", "fsdp:shard=3"])
def test_they_move_as_they_are_stored(layout, tmp_path):
  tensors, _ = checkpoint()
  folder = folder_of(tmp_path / "in", tensors)
  command("convert", folder, tmp_path / "there", "--to", layout + (":" if ":" not in layout else ",") + "quant=gptq")
  command("convert", tmp_path / "there", tmp_path / "back", "--to", "hf:quant=stored")
  same(read(tmp_path / "back"), tensors)
  assert (tmp_path / "back/config.json").read_bytes() == (folder / "config.json").read_bytes()
  assert "the same" in command("verify", folder, tmp_path / "back")


def test_a_layout_of_an_engine_has_modules_of_one_form(tmp_path):
  rules = {"+:.*mlp": {"bits": 8}, "-:.*o_proj": {}}

  def parts_of(rows, cols, name):
    if name.endswith("o_proj"):
      weight = scales(rows, cols)
      return {".weight": weight}, weight
    return gptq(rows, cols, bits=8 if ".mlp" in name else 4, order=None)

  tensors, _ = checkpoint(parts_of)
  folder = folder_of(tmp_path / "in", tensors, {**GPTQ, "dynamic": rules})
  command("convert", folder, tmp_path / "ranks", "--to", "vllm:tp=1,quant=gptq")
  held = ranks(tmp_path / "ranks")[0]
  for fused, pieces in (("self_attn.qkv_proj", "qkv"), ("mlp.gate_up_proj", ("gate", "up"))):
    modules = [f"{LAYER}{fused.split('.')[0]}.{piece}_proj.qweight" for piece in pieces]
    assert torch.equal(held[f"{LAYER}{fused}.qweight"], torch.cat([tensors[name] for name in modules], dim=1))
  command("convert", tmp_path / "ranks", tmp_path / "back", "--to", "hf:quant=gptq")
  same(read(tmp_path / "back"), tensors)


# What is refused, by name.


def refused(tmp_path, tensors, layout, section=GPTQ):
  said = command("convert", folder_of(tmp_path / "in", tensors, section), tmp_path / "out", "--to", layout, fails=True)
  assert not (tmp_path / "out").exists() and len(said.strip().splitlines()) == 1, said
  return said


def test_fused_modules_that_differ_are_refused_for_an_engine(tmp_path):
  tensors, _ = checkpoint(lambda r, c, name: gptq(r, c, bits=8 if name.endswith("gate_proj") else 4, order=None))
  said = refused(tmp_path, tensors, "vllm:tp=1,quant=gptq", {**GPTQ, "dynamic": {"+:.*gate": {"bits": 8}}})
  assert "gate_up_proj.weight' cannot hold gptq" in said and "are not those of its other tensors" in said, said


def test_codes_that_cross_words_are_refused_for_an_engine(tmp_path):
  tensors, _ = checkpoint(lambda r, c, name: gptq(r, c, bits=3, order=None))
  said = refused(tmp_path, tensors, "vllm:tp=1,quant=gptq", {**GPTQ, "bits": 3, "dynamic": {}})
  assert "no engine that is known loads 'model.layers.0.self_attn.q_proj.weight' so" in said, said


def test_parts_that_fit_no_rule_are_refused(tmp_path):
  tensors, _ = checkpoint(lambda r, c, name: gptq(r, c, bits=2 if name.endswith("q_proj") else 4, first=False))
  said = refused(tmp_path, tensors, "vllm:tp=1")
  assert f"q_proj.qweight' is I32 [4, 64], its qzeros are [2, 4] and its scales [2, 64]: no form of {TEXT}" in said, said


def test_groups_of_two_sizes_that_parts_fit_are_refused(tmp_path):
  tensors, _ = checkpoint(lambda r, c, name: gptq(r, c))
  section = {**GPTQ, "dynamic": {"+:.*k_proj": {"group_size": 48}}}
  said = refused(tmp_path, tensors, "vllm:tp=1", section)
  assert "_proj.qweight' may have groups of 32 or 48 columns: its parts fit both" in said, said


@pytest.mark.parametrize(
  ("rule", "said"),
  [
    ({"bits": 5}, "dynamic: \"+:.*up\": 5 bits is not supported"), ({"format": "marlin"}, '"+:.*up": "format"'),
    ({"pack_dtype": "int16"}, '"+:.*up": packed into int16'), ({"adapter": {"rank": 4}}, '"+:.*up": "adapter"'),
  ],
)  # fmt: skip
def test_rules_that_say_something_else_are_refused(rule, said, tmp_path):
  tensors, _ = checkpoint(lambda r, c, name: gptq(r, c))
  assert said in refused(tmp_path, tensors, "vllm:tp=1", {**GPTQ, "dynamic": {"+:.*up": rule}})
