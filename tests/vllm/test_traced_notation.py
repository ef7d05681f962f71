# SPDX-License-Identifier: Apache-2.0
"""Layouts "traced:vllm,...": in a process of its own, what the tracer gives and what families have."""

import dataclasses
import json
import sys

import pytest

reshard = pytest.importorskip("reshard")

import transformers  # noqa: E402
import world  # noqa: E402
from ranks import reshard as program  # noqa: E402
from ranks import wrong_on  # noqa: E402
from reshard.learn.__main__ import checkpoint as small_checkpoint  # noqa: E402
from reshard.learn.models import tiny  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402


@pytest.fixture(autouse=True)
def kept_here(tmp_path, monkeypatch):
  monkeypatch.setenv("RESHARD_CACHE", str(tmp_path / "kept"))
  monkeypatch.setenv("RESHARD_PYTHON", sys.executable)  # for the program


@pytest.fixture(scope="module")
def unknown(tmp_path_factory):
  """A checkpoint of a class without a family, as transformers writes it; made before vLLM, which
  replaces modules of that class, has built one here."""
  folder = tmp_path_factory.mktemp("unknown")
  config = transformers.SeedOssConfig(
    hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=8,
    num_key_value_heads=2, head_dim=16, vocab_size=300, max_position_embeddings=128,
  )  # fmt: skip
  model = transformers.AutoModelForCausalLM.from_config(config, dtype="bfloat16")
  model.save_pretrained(folder)
  return folder


def is_converted_as_vllm_loads_it(folder, tp, work):
  program("convert", folder, work / "ranks", "--to", f"traced:vllm,tp={tp}")
  index = json.loads((work / "ranks" / "reshard.json").read_text())
  assert index["layout"] == "explicit:explicit.json"
  config = world.engine_config(folder, {"tp": tp})
  for entry in index["ranks"]:
    held = world.held_by_vllm(config, folder, entry["rank"])
    said, compared = wrong_on(entry["rank"], held, load_file(work / "ranks" / entry["file"]), None)
    assert compared > 10 and not said


def test_a_class_without_a_family_is_converted_as_vllm_loads_it(unknown, tmp_path):
  is_converted_as_vllm_loads_it(unknown, 4, tmp_path)


def test_a_class_that_no_card_knows_and_vllm_builds_without_prefix_caching_only(tmp_path):
  sizes = dataclasses.replace(tiny.SEEN[0], expert_width=512)  # vLLM pads a rank's rows to 256 and fills them with anything
  folder = small_checkpoint(tmp_path / "kimi", "KimiLinearForCausalLM", sizes)
  tensors = load_file(folder / "model.safetensors")  # transformers names the dense layer as those with experts
  published = {k.replace("layers.0.block_sparse_moe.", "layers.0.mlp."): t for k, t in tensors.items()}
  save_file(published, folder / "model.safetensors", metadata={"format": "pt"})
  is_converted_as_vllm_loads_it(folder, 2, tmp_path)


def test_a_refusal_names_the_notation_that_works(unknown):
  model = reshard.open_model(unknown)
  with pytest.raises(reshard.UnsupportedError, match=r"traced:vllm,tp=2 asks the engine's own loader"):
    reshard.layout("vllm:tp=2", model)
  assert len(reshard.layout("traced:vllm,tp=2", model).ranks) == 2


@pytest.mark.parametrize("model, form, method", [("llama", "fp8_block", "fp8"), ("qwen3-moe", "mxfp8", "compressed-tensors")])
def test_a_quantised_checkpoint_becomes_the_engines_quantised_layout(checkpoint, model, form, method):
  folder = checkpoint(model, f"hf:quant={form},quant_method={method}")
  opened = reshard.open_model(folder)
  traced = reshard.layout("traced:vllm,tp=2", opened)
  family = reshard.layout(f"vllm:tp=2,quant={form},quant_method={method},quant_grid=tensor,experts=routed_experts", opened)
  assert traced.quantised and reshard.diff(family, traced) == []


def test_keys_are_those_of_the_engine(unknown):
  model = reshard.open_model(unknown)
  assert reshard.layout("traced:vllm,dtype=float32", model).local(0)[0].dtype.name == "f32"
  with pytest.raises(reshard.InvalidArgumentError, match=r"unknown key 'max_modl_len'; did you mean 'max_model_len'"):
    reshard.layout("traced:vllm,max_modl_len=8", model)
  with pytest.raises(reshard.InvalidArgumentError, match=r"ep=3: .* 1 or 2"):
    reshard.layout("traced:vllm,tp=2,ep=3", model)
