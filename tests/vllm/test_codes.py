# SPDX-License-Identifier: Apache-2.0
"""AWQ, GPTQ and compressed-tensors with zero points as they are stored: codes, scales and zero points that vLLM's own loaders leave on every rank, before a
kernel repacks them."""

import json
import pathlib
import sys

import pytest
import world
from models import MODELS
from ranks import reshard
from safetensors.torch import load_file, save_file

sys.path.append(str(pathlib.Path(__file__).parents[1] / "python"))
from code_forms import awq, gptq, pack_quantized, packed  # noqa: E402

_AWQ = {"quant_method": "awq", "bits": 4, "zero_point": True, "version": "gemm"}
_GPTQ = {"quant_method": "gptq", "bits": 4, "desc_act": False, "sym": True}
# name: (parts of a module, quantization_config)
_FORMS = {
  "awq": (lambda r, c: awq(r, c, group=64), {**_AWQ, "group_size": 64}),
  "gptq": (lambda r, c: gptq(r, c, group=64, order="groups"), {**_GPTQ, "group_size": 64}),
  "gptq-without-order": (lambda r, c: gptq(r, c, group=64, order=None), {**_GPTQ, "group_size": 64}),
  "gptq-8-bits": (lambda r, c: gptq(r, c, bits=8, group=64, order="groups"), {**_GPTQ, "bits": 8, "group_size": 64}),
  "gptq-channels": (lambda r, c: gptq(r, c, group=-1, order="groups"), {**_GPTQ, "group_size": -1}),
  "packed": (lambda r, c: packed(r, c, group=64), pack_quantized(64)),
  "packed-channels": (lambda r, c: packed(r, c, group=-1), pack_quantized(-1)),
}  # fmt: skip
_SIZES = (dict(), dict(tp=2), dict(tp=4), dict(tp=8), dict(tp=2, pp=2))
# Scales of BF16 models are rounded as vLLM's loader rounds them.
_ROWS = [("llama", form, sizes, "float16") for form in _FORMS for sizes in _SIZES] + [
  ("qwen2", "awq", dict(tp=2), "float16"),
  ("qwen3-bias", "gptq", dict(tp=4), "float16"),
  ("qwen3", "awq", dict(tp=2), "bfloat16"),
]


@pytest.fixture(scope="module")
def coded(tmp_path_factory):
  """coded(model, form, dtype) -> folder: random weights, whose linear layers are codes."""
  written = {}

  def get(model, form, dtype):
    if (model, form, dtype) not in written:
      parts_of, section = _FORMS[form]
      folder = tmp_path_factory.mktemp(form)
      config = MODELS[model] | {"torch_dtype": dtype}
      (folder / "config.json").write_text(json.dumps(config))
      reshard("synth", folder / "config.json", folder / "hf")
      made = folder / "hf"
      tensors = load_file(made / "model.safetensors")
      for name in [n for n in tensors if n.endswith("_proj.weight")]:
        parts, _ = parts_of(*tensors.pop(name).shape)
        tensors |= {name.removesuffix(".weight") + end: t.contiguous() for end, t in parts.items()}
      save_file(tensors, made / "model.safetensors", {"format": "pt"})
      (made / "config.json").write_text(json.dumps(config | {"quantization_config": section}))
      written[model, form, dtype] = made
    return written[model, form, dtype]

  return get


def _named(row):
  return "-".join([*row[:2], *(f"{key}{value}" for key, value in row[2].items()), row[3]])


@pytest.mark.parametrize("model, form, sizes, dtype", _ROWS, ids=map(_named, _ROWS))
def test_every_rank_holds_what_vllm_loads(model, form, sizes, dtype, coded, compare):
  compare(coded(model, form, dtype), sizes, ",quant=" + _FORMS[form][1]["quant_method"])


def test_vllm_refuses_columns_in_another_order(coded):
  folder = coded("llama", "gptq", "float16")
  config = json.loads((folder / "config.json").read_text())
  config["quantization_config"]["desc_act"] = True
  other = folder.parent / "ordered"
  other.mkdir()
  (other / "config.json").write_text(json.dumps(config))
  (other / "model.safetensors").symlink_to(folder / "model.safetensors")
  with pytest.raises(ValueError, match="desc_act=True"):
    world.engine_config(other, {})
