# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that transformers writes of models quantised by torchao: every layout gets the values that torchao
itself dequantises, and what is not understood is refused by name."""

import json

import pytest
import safetensors.torch
import torch
import transformers
from torchao.prototype.mx_formats import NVFP4WeightOnlyConfig
from torchao.prototype.mx_formats.inference_workflow import MXDynamicActivationMXWeightConfig
from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
from torchao.quantization import (
  Float8WeightOnlyConfig,
  Int4Tensor,
  Int8DynamicActivationInt8WeightConfig,
  Int8WeightOnlyConfig,
  IntxWeightOnlyConfig,
  MappingType,
  PerGroup,
  PerRow,
  PerTensor,
)

import reshard.hf
from dense_model import CONFIG, LAYER, MATRICES, UNKNOWN, VECTORS
from folders import command, expect_layout_of_values, ranks, read, same, write

GROUP = 32
GENERATOR = torch.Generator().manual_seed(6)
INT4 = {"weight_dtype": torch.int4, "granularity": PerGroup(GROUP)}
KINDS = {
  "int8": Int8WeightOnlyConfig(version=2),
  "int8_groups": Int8WeightOnlyConfig(version=2, granularity=PerGroup(GROUP)),
  "int8_tensor": Int8WeightOnlyConfig(version=2, granularity=PerTensor()),
  "int8_dynamic": Int8DynamicActivationInt8WeightConfig(version=2),
  "int4_symmetric": IntxWeightOnlyConfig(**INT4),
  "int4_asymmetric": IntxWeightOnlyConfig(**INT4, mapping_type=MappingType.ASYMMETRIC),
  "fp8_row": Float8WeightOnlyConfig(granularity=PerRow()),
  "fp8_tensor": Float8WeightOnlyConfig(granularity=PerTensor()),
  "fp8_e5m2": Float8WeightOnlyConfig(weight_dtype=torch.float8_e5m2),
  "mxfp8": MXDynamicActivationMXWeightConfig(),
  "mxfp4": MXDynamicActivationMXWeightConfig(
    activation_dtype=torch.float4_e2m1fn_x2, weight_dtype=torch.float4_e2m1fn_x2
  ),
  "nvfp4": NVFP4WeightOnlyConfig(),
}


def values():
  """The tensors of a small model, whose rows differ in size."""
  made = {"model.embed_tokens.weight": (32, 64), "model.norm.weight": (64,), "lm_head.weight": (32, 64)}
  made |= {LAYER + name + ".weight": shape for name, shape in MATRICES.items()}
  made |= {LAYER + name + ".weight": (size,) for name, size in VECTORS.items()}
  tensors = {}
  for name, shape in made.items():
    size_of_row = (torch.arange(shape[0]) % 5 + 1).view(-1, *[1] * (len(shape) - 1)) * 0.02
    tensors[name] = ((torch.randn(shape, generator=GENERATOR) + 0.1) * size_of_row).bfloat16()
  return tensors


@pytest.fixture(scope="module", params=KINDS)
def stored(request, tmp_path_factory):
  """(folder that transformers wrote, what torchao dequantises of its tensors)."""
  folder = tmp_path_factory.mktemp(request.param)
  plain = write(folder / "plain", values(), CONFIG)
  how = transformers.TorchAoConfig(KINDS[request.param])
  model = transformers.AutoModelForCausalLM.from_pretrained(plain, quantization_config=how, dtype=torch.bfloat16)
  model.save_pretrained(folder / "in")
  held = model.state_dict()
  dequantised = {n: t.dequantize() if hasattr(t, "tensor_data_names") else t for n, t in held.items()}
  assert sum(hasattr(t, "tensor_data_names") for t in held.values()) == len(MATRICES)
  return folder / "in", {n: t.bfloat16().contiguous() for n, t in dequantised.items()}


def test_values_are_those_of_torchao(stored, tmp_path):
  folder, expected = stored
  said = command("convert", folder, tmp_path / "out", "--to", "hf")
  assert f"{len(MATRICES)} tensors decoded from torchao" in said, said
  same(read(tmp_path / "out"), expected)
  assert "quantization_config" not in json.loads((tmp_path / "out/config.json").read_text())
  command("verify", folder, tmp_path / "out")


@pytest.mark.parametrize("layout", ["vllm:tp=2", "megatron:tp=2", "fsdp:shard=3"])
def test_values_reach_every_layout(stored, layout, tmp_path):
  folder, expected = stored
  config = json.loads((folder / "config.json").read_text())
  del config["quantization_config"]
  expect_layout_of_values(folder, expected, config, layout, tmp_path)


def test_python_loads_a_rank_of_them(stored, tmp_path):
  folder, _ = stored
  model = reshard.open_model(folder)
  assert "torchao" in model.decoded_from
  command("convert", folder, tmp_path / "ranks", "--to", "fsdp:shard=2")
  same(reshard.hf.load(folder, "fsdp:shard=2", 1), ranks(tmp_path / "ranks")[1])


# Int4Tensor is made by kernels of a GPU, in MSLK. Its class and its files are torchao's own here; the codes are made by
# the layout that its kernels document: (code, -8 to 7) * scale + zero point, the even column in the low half of a byte.


def int4(rows, cols):
  """A weight as Int4Tensor, and its values."""
  codes = torch.randint(-8, 8, (rows, cols), generator=GENERATOR)
  scale, zero = (torch.randn(cols // GROUP, rows, generator=GENERATOR).bfloat16() for _ in range(2))
  packed = ((codes[:, ::2] & 15) | (codes[:, 1::2] << 4)).to(torch.int8)
  group_of = torch.arange(cols) // GROUP
  value = codes.float() * scale.float().T[:, group_of] + zero.float().T[:, group_of]
  return Int4Tensor(packed, scale, zero, [1, GROUP], torch.Size((rows, cols))), value.bfloat16()


def save(folder, tensors, change=None):
  """Writes tensors as transformers does. `change`, called with tensors and metadata, may alter both."""
  flat, metadata = flatten_tensor_state_dict(tensors)
  if change is not None:
    change(flat, metadata)
  folder.mkdir()
  safetensors.torch.save_file({n: t.contiguous() for n, t in flat.items()}, folder / "model.safetensors", metadata)
  section = {"quant_method": "torchao", "quant_type": {"default": {"_type": "Int4WeightOnlyConfig"}}}
  (folder / "config.json").write_text(json.dumps({**CONFIG, "quantization_config": section}))
  return folder


def int4_tensors():
  tensors, expected = values(), values()
  for name, shape in MATRICES.items():
    tensors[f"{LAYER}{name}.weight"], expected[f"{LAYER}{name}.weight"] = int4(*shape)
  plain = {n for n in tensors if not isinstance(tensors[n], Int4Tensor)}
  return tensors, expected | {n: tensors[n] for n in plain}


def test_int4_with_zero_points_that_are_values(tmp_path):
  tensors, expected = int4_tensors()
  folder = save(tmp_path / "in", tensors)
  said = command("convert", folder, tmp_path / "out", "--to", "hf")
  assert "decoded from torchao, Int4WeightOnlyConfig" in said, said
  same(read(tmp_path / "out"), expected)


def test_a_class_that_is_not_known_is_read_as_well(tmp_path):
  tensors, expected = int4_tensors()
  folder = save(tmp_path / "in", tensors)
  config = json.loads((folder / "config.json").read_text()) | UNKNOWN
  (folder / "config.json").write_text(json.dumps(config))
  command("convert", folder, tmp_path / "out", "--to", "hf")
  same(read(tmp_path / "out"), expected)


UP = LAYER + "mlp.up_proj"


def described(key, value):
  """A change of the description of one weight."""

  def change(_, metadata):
    text = json.loads(metadata[UP + ".weight"])
    (text if key.startswith("_") else text["_data"])[key] = value
    metadata[UP + ".weight"] = json.dumps(text)

  return change


PRE_SCALED = ["qdata", "scale", "zero_point", "act_pre_scale"]


def pre_scaled(flat, metadata):
  """A weight whose inputs are scaled first."""
  flat[UP + "._weight_act_pre_scale"] = torch.ones(64)
  described("_tensor_data_names", PRE_SCALED)(flat, metadata)


@pytest.mark.parametrize(
  ("change", "what"),
  [
    (lambda _, metadata: metadata.pop(UP + ".weight"), "does not describe 'model.layers.0.mlp.up_proj.weight'"),
    (described("_type", "Int4TilePackedTo4dTensor"), "is stored as torchao's Int4TilePackedTo4dTensor, which is not read"),
    (described("block_size", [2, GROUP]), "blocks that are not groups of columns"),
    (described("_tensor_data_names", PRE_SCALED), "without 'model.layers.0.mlp.up_proj._weight_act_pre_scale'"),
    (pre_scaled, "of 'model.layers.0.mlp.up_proj._weight_act_pre_scale', which is not read"),
    (lambda flat, _: flat.pop(UP + "._weight_zero_point"), "without 'model.layers.0.mlp.up_proj._weight_zero_point'"),
    (lambda flat, _: flat.update({UP + "._weight_scale": torch.ones(3, 96)}), "it must be"),
  ],
)  # fmt: skip
def test_what_is_not_understood_is_moved_and_never_read(tmp_path, change, what):
  folder = save(tmp_path / "in", int4_tensors()[0], change)
  said = command("convert", folder, tmp_path / "out", "--to", "hf")
  assert what in said, said
  same(read(tmp_path / "out"), read(folder))
  refused = command("convert", folder, tmp_path / "no", "--to", "vllm:tp=2", fails=True)
  assert len(refused.strip().splitlines()) == 1 and not (tmp_path / "no").exists()


@pytest.mark.parametrize("text", ["[1", "3", '{"_type": 3}', '{"_type": "Int4Tensor"}', '{"_type": "Int4Tensor", "_data": 1}'])
def test_a_description_that_is_malformed_is_refused(tmp_path, text):
  folder = save(tmp_path / "in", int4_tensors()[0], lambda _, metadata: metadata.update({UP + ".weight": text}))
  said = command("convert", folder, tmp_path / "out", "--to", "vllm:tp=2", fails=True)
  assert "the metadata of 'model.layers.0.mlp.up_proj.weight'" in said and len(said.strip().splitlines()) == 1, said


def test_plain_weights_beside_a_section_of_torchao_are_refused_as_before(tmp_path):
  """torchao may quantise when it loads, so the section does not say how files store weights."""
  folder = write(tmp_path / "in", values(), {**CONFIG, "quantization_config": {"quant_method": "torchao"}})
  command("convert", folder, tmp_path / "out", "--to", "hf")
  same(read(tmp_path / "out"), read(folder))
