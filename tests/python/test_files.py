# SPDX-License-Identifier: Apache-2.0
"""Files the program writes, read by the safetensors package; every dtype the package can write."""

import pytest
import safetensors
import safetensors.torch
import torch

import checkpoints
import program

# All that the installed package and torch have between them, as torch calls them.
DTYPES = [
  name
  for name in (
    "bool uint8 int8 int16 uint16 int32 uint32 int64 uint64 float16 bfloat16 float32 float64 "
    "complex64 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu "
    "float4_e2m1fn_x2"
  ).split()
  if getattr(torch, name, None) in safetensors.torch._SIZE
]


def raw(path):
  """name -> (dtype, shape, bytes) of a file, with no idea of what a dtype means."""
  with open(path, "rb") as file:
    entries = safetensors.deserialize(file.read())
  return {name: (part["dtype"], part["shape"], bytes(part["data"])) for name, part in entries}


def random_bits(like, dtype):
  """As many elements as `like` has, of any dtype, every bit pattern that the dtype allows."""
  if dtype == torch.bool:
    return torch.randint(0, 2, like.shape).to(torch.bool)
  if dtype == torch.float4_e2m1fn_x2:
    # Two elements share a byte and torch counts bytes: half as many, twice as wide in the file.
    shape = (*like.shape[:-1], like.shape[-1] // 2)
  else:
    shape = like.shape
  width = torch.empty(0, dtype=dtype).element_size()
  noise = torch.randint(0, 256, (*shape, width), dtype=torch.uint8)
  return noise.view(dtype).reshape(shape)


def test_the_dtypes_that_matter_are_among_them():
  needed = {"bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn_x2"}
  assert needed <= set(DTYPES)


@pytest.mark.parametrize("name", DTYPES)
def test_a_dtype_survives_hf_to_hf(name, checkpoint, tmp_path):
  folder, model = checkpoint("llama")
  torch.manual_seed(0)
  source = tmp_path / "source"
  source.mkdir()
  (source / "config.json").write_text((folder / "config.json").read_text())
  tensors = safetensors.torch.load_file(folder / "model.safetensors")
  odd = [part for part in tensors if part.endswith(("k_proj.weight", "lm_head.weight"))]
  assert len(odd) == model.num_layers + 1
  for part in odd:
    tensors[part] = random_bits(tensors[part], getattr(torch, name))
  safetensors.torch.save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
  out = program.convert(source, tmp_path / "out", "hf", "hf")
  assert raw(out / "model.safetensors") == raw(source / "model.safetensors")
  assert checkpoints.config_of(out) == checkpoints.config_of(source)
  loaded = safetensors.torch.load_file(out / "model.safetensors")
  assert {loaded[part].dtype for part in odd} == {getattr(torch, name)}
  assert [loaded[part].shape for part in odd] == [tensors[part].shape for part in odd]


@pytest.mark.parametrize("layout", ["hf", "megatron:tp=2,pp=2,ep=2", "vllm:tp=2,dp=2,ep=4"])
def test_the_package_opens_every_file(layout, checkpoint, tmp_path):
  folder, _ = checkpoint("qwen3-moe-10" if layout == "hf" else "qwen3-moe")
  out = program.convert(folder, tmp_path / "out", "hf", layout)
  files = sorted(out.glob("*.safetensors"))
  assert files
  for path in files:
    with safetensors.safe_open(path, framework="pt") as file:
      if layout == "hf":
        assert file.metadata().get("format") == "pt", "older transformers refuse the file"
      names = list(file.keys())
      assert names
      for name in names:
        assert file.get_tensor(name).numel() > 0
