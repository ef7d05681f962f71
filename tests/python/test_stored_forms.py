# SPDX-License-Identifier: Apache-2.0
"""One model in all the forms that transformers and torch leave it in on disk: experts stacked as the
modules of transformers 5 hold them, in safetensors and in pieces; names with and without the
prefix of the class; with and without a head. What ranks hold is the same.
"""

import json

import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
import transformers

import checkpoints
import folders

if int(transformers.__version__.split(".")[0]) < 5:
  pytest.skip("modules of transformers 4 do not stack experts", allow_module_level=True)

MOE = ["qwen3-moe", "mixtral", "mixtral-tied", "deepseek", "glm", "qwen3-next", "nemotron-latent"]
LAYOUTS = ["vllm:tp=2", "sglang:tp=2,ep=2", "megatron:tp=2,ep=2", "fsdp:shard=3"]


def loaded(folder):
  config = transformers.AutoConfig.from_pretrained(folder)
  made = getattr(transformers, config.architectures[0])
  return made.from_pretrained(folder, dtype=config.dtype)


def same_ranks(folder, ref, layout, tmp_path):
  found = {}
  for name, source in (("a", ref), ("b", folder)):
    out = tmp_path / f"{source.name}-{layout.replace(':', '-')}"
    folders.command("convert", source, out, "--to", layout)
    found[name] = folders.ranks(out)
  assert found["a"].keys() == found["b"].keys()
  for rank, tensors in found["a"].items():
    folders.same(found["b"][rank], tensors)


@pytest.mark.parametrize("name", MOE)
def test_stacked_experts_are_those_of_the_checkpoint(name, checkpoint, tmp_path):
  ref, _ = checkpoint(name)
  stacked = tmp_path / "stacked"
  loaded(ref).save_pretrained(stacked, save_original_format=False)
  held = folders.read(stacked)
  assert any(tensor.endswith(".experts.down_proj") for tensor in held)
  for layout in LAYOUTS:
    same_ranks(stacked, ref, layout, tmp_path)
  folders.command("verify", ref, stacked)
  folders.command("convert", stacked, tmp_path / "again", "--to", "hf")
  folders.same(folders.read(tmp_path / "again"), held)


@pytest.mark.parametrize("name", ["qwen3-moe", "mixtral", "nemotron-latent"])
def test_the_state_dict_of_a_trainer_is_the_checkpoint(name, checkpoint, tmp_path):
  ref, _ = checkpoint(name)
  saved = tmp_path / "dcp"
  dcp.save(loaded(ref).state_dict(), checkpoint_id=saved, no_dist=True)
  (saved / "config.json").write_text((ref / "config.json").read_text())
  same_ranks(saved, ref, "vllm:tp=2", tmp_path)
  folders.command("convert", saved, tmp_path / "hf", "--to", "hf")
  folders.same(folders.read(tmp_path / "hf"), folders.read(ref))


def write_pieces(folder, tensors, config, parts):
  """Files as torch's HuggingFaceStorageWriter has them: of each tensor one of `parts` slices along
  a dimension, which is another one for the next tensor."""
  folder.mkdir()
  for part in range(parts):
    held, offsets = {}, {}
    for number, (name, tensor) in enumerate(sorted(tensors.items())):
      dim = number % max(tensor.dim(), 1)
      size = tensor.shape[dim] if tensor.dim() else 1
      begin, end = size * part // parts, size * (part + 1) // parts
      if begin == end:
        continue
      held[name] = tensor.narrow(dim, begin, end - begin).contiguous()
      offsets[name] = {"saved_offsets": [begin if i == dim else 0 for i in range(tensor.dim())]}
    path = folder / f"shard-{part:05}-model-00001-of-00001.safetensors"
    safetensors.torch.save_file(held, path, {"DCP_SHARDING_INFO": json.dumps(offsets)})
  (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("parts", [2, 3, 7])
def test_pieces_may_cut_a_stack_along_any_dimension(parts, checkpoint, tmp_path):
  ref, _ = checkpoint("qwen3-moe")
  state = loaded(ref).state_dict()
  write_pieces(tmp_path / "pieces", state, checkpoints.config_of(ref), parts)
  same_ranks(tmp_path / "pieces", ref, "vllm:tp=2", tmp_path)


def test_a_stack_of_another_shape_is_refused_with_both_shapes(checkpoint, tmp_path):
  ref, _ = checkpoint("qwen3-moe")
  loaded(ref).save_pretrained(tmp_path / "stacked", save_original_format=False)
  tensors = folders.read(tmp_path / "stacked")
  name = next(n for n in sorted(tensors) if n.endswith(".gate_up_proj"))
  tensors[name] = tensors[name].transpose(1, 2).contiguous()
  wrong = folders.write(tmp_path / "wrong", tensors, checkpoints.config_of(ref))
  said = folders.command("convert", wrong, tmp_path / "out", "--to", "hf", fails=True)
  assert f"tensor '{name}' has shape [8, 64, 96] but the config says [8, 96, 64]" in said


def test_experts_that_are_there_twice_are_refused(checkpoint, tmp_path):
  ref, _ = checkpoint("qwen3-moe")
  loaded(ref).save_pretrained(tmp_path / "stacked", save_original_format=False)
  both = folders.read(ref) | folders.read(tmp_path / "stacked")
  twice = folders.write(tmp_path / "twice", both, checkpoints.config_of(ref))
  said = folders.command("convert", twice, tmp_path / "out", "--to", "hf", fails=True)
  assert "mlp.experts.down_proj' of shape [8, 64, 48] is not part of" in said


# Of AutoModel, whose class has no head; embedding models are published so.
BARE = ["llama", "qwen3", "qwen3-moe", "gpt-oss", "gemma3", "nemotron"]


@pytest.mark.parametrize("name", BARE)
def test_a_decoder_alone_is_converted(name, checkpoint, tmp_path):
  ref, _ = checkpoint(name)
  bare = tmp_path / "bare"
  transformers.AutoModel.from_pretrained(ref, dtype="auto").save_pretrained(bare)
  held = folders.read(bare)
  assert not any(tensor.startswith(("model.", "backbone.", "lm_head.")) for tensor in held)
  folders.command("convert", bare, tmp_path / "hf", "--to", "hf")
  folders.same(folders.read(tmp_path / "hf"), held)
  folders.command("convert", bare, tmp_path / "fsdp", "--to", "fsdp:shard=2,transformers=4")
  folders.command("verify", bare, tmp_path / "fsdp")
  folders.command("convert", bare, tmp_path / "vllm", "--to", "vllm:tp=2")
  folders.command("convert", ref, tmp_path / "ref", "--to", "vllm:tp=2")
  alone, whole = folders.ranks(tmp_path / "vllm"), folders.ranks(tmp_path / "ref")
  for rank, tensors in whole.items():
    tensors.pop("lm_head.weight", None)
    folders.same(alone[rank], tensors)


def test_a_model_without_its_head_is_converted_where_no_head_is_needed(checkpoint, tmp_path):
  ref, _ = checkpoint("llama")
  tensors = folders.read(ref)
  del tensors["lm_head.weight"]
  headless = folders.write(tmp_path / "headless", tensors, checkpoints.config_of(ref))
  for layout in ("hf", "fsdp:shard=2"):
    out = tmp_path / layout[:2]
    folders.command("convert", headless, out, "--to", layout)
    folders.command("verify", headless, out)
  for layout in ("vllm:tp=2", "sglang:tp=2", "megatron:tp=2"):
    said = folders.command("convert", headless, tmp_path / "out", "--to", layout, fails=True)
    assert "tensor 'lm_head.weight' is missing from the model" in said


def test_a_class_under_the_type_of_another_is_converted_by_its_tensors(checkpoint, tmp_path):
  ref, _ = checkpoint("llama")
  config = checkpoints.config_of(ref) | {"model_type": "internlm3"}
  other = folders.write(tmp_path / "other", folders.read(ref), config)
  folders.command("convert", other, tmp_path / "hf", "--to", "hf")
  folders.same(folders.read(tmp_path / "hf"), folders.read(ref))
  folders.command("convert", other, tmp_path / "fsdp", "--to", "fsdp:shard=2")
  said = folders.command("convert", other, tmp_path / "out", "--to", "vllm:tp=2", fails=True)
  assert "no known class fits: model_type is \"internlm3\"" in said


def test_values_that_only_python_writes_stay_in_a_config(checkpoint, tmp_path):
  ref, _ = checkpoint("nemotron")
  config = checkpoints.config_of(ref) | {"time_step_limit": [0.0, float("inf")]}
  odd = folders.write(tmp_path / "odd", folders.read(ref), config)
  folders.command("convert", odd, tmp_path / "hf", "--to", "hf:quant=fp8_tensor")
  written = checkpoints.config_of(tmp_path / "hf")
  assert written["time_step_limit"] == [0.0, float("inf")]
  assert written["quantization_config"]["quant_method"] == "fp8"
