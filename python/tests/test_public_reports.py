# SPDX-License-Identifier: Apache-2.0
"""Inputs from public bug reports: each is converted right, or refused with the reason.

Every case names the reports that it was made after.
"""

import json
import math
import random
import re
import struct

import pytest

import report_models
from report_models import Program, config, random_tensors, save_dcp, write_checkpoint


@pytest.fixture
def program(tmp_path):
  return Program(tmp_path)


def test_a_dcp_folder_with_two_models_is_refused_until_one_is_chosen(program, tmp_path):
  """pytorch/torchtitan#3985, facebookresearch/d2go#519."""
  c = config()
  tensors = random_tensors(c)
  write_checkpoint(tmp_path / "hf", c, tensors)
  averages = report_models.as_torch(random_tensors(c, seed=9))
  save_dcp(tmp_path / "in", c, {"model": report_models.as_torch(tensors), "ema": averages})
  said = program.fail("convert", "in", "out", "--to", "hf")
  assert all(word in said for word in ("model", "ema", "--prefix"))
  program.succeed("convert", "in", "chosen", "--to", "hf", "--prefix", "model.")
  program.succeed("verify", "hf", "chosen")


def _biased(c):
  tensors, source = random_tensors(c), random.Random(8)
  for n in range(2):
    for name, rows in (("q", 64), ("k", 32), ("v", 32)):
      bias = f"model.layers.{n}.self_attn.{name}_proj.bias"
      tensors[bias] = ("BF16", (rows,), source.randbytes(2 * rows))
  return tensors


@pytest.mark.parametrize("layers", ["single", "stacked"])
@pytest.mark.parametrize("kind", ["layers", "biases"])
def test_a_torch_dist_checkpoint_that_has_more_than_its_config_is_refused(
  program, tmp_path, kind, layers
):
  """NVIDIA-NeMo/Megatron-Bridge#5261, NVIDIA/Megatron-LM#1778."""
  if kind == "layers":
    c, edit = config(num_hidden_layers=4), {"num_hidden_layers": 2}
    tensors = random_tensors(c)
  else:
    c = config(architectures=["Qwen2ForCausalLM"], model_type="qwen2")
    edit = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    tensors = _biased(c)
  write_checkpoint(tmp_path / "hf", c, tensors)
  more = ",layers=single" if layers == "single" else ""
  program.succeed("convert", "hf", "in", "--to", f"torch_dist:shard=1{more}")
  (tmp_path / "in" / "config.json").write_text(json.dumps(c | edit))
  said = program.fail("convert", "in", "out", "--to", "hf")
  assert re.search("not part of (the config's|its) architecture", said)
  (tmp_path / "in" / "config.json").write_text(json.dumps(c))
  assert "left out" not in program.succeed("convert", "in", "out", "--to", "hf")
  program.succeed("verify", "hf", "out")


def test_a_config_with_infinity_is_read_and_kept(program, tmp_path):
  """ml-explore/mlx-swift-lm#109, ai-dynamo/dynamo#3043, huggingface/transformers#42959."""
  c = config(time_step_limit=[0.0, float("inf")], a=float("-inf"), b=float("nan"))
  write_checkpoint(tmp_path / "in", c, random_tensors(c))
  program.succeed("inspect", "in/config.json")
  program.succeed("convert", "in", "out", "--to", "vllm:tp=2")
  program.succeed("convert", "in", "hf", "--to", "hf")
  program.succeed("verify", "in", "hf")
  for folder in ("out", "hf"):
    kept = json.loads((tmp_path / folder / "config.json").read_text())
    assert kept["time_step_limit"] == [0.0, math.inf]
    assert kept["a"] == -math.inf and math.isnan(kept["b"])


def _experts(c, stacked):
  """The tensors of a Qwen3-MoE, its experts stacked, as transformers 5 has them, or apart."""
  source = random.Random(1)
  experts, inner, hidden = c["num_experts"], c["moe_intermediate_size"], c["hidden_size"]
  tensors = random_tensors(c, mlp=False)
  for n in range(c["num_hidden_layers"]):
    mlp = f"model.layers.{n}.mlp."
    gate = source.randbytes(2 * experts * hidden)
    tensors[mlp + "gate.weight"] = ("BF16", (experts, hidden), gate)
    gate_up = [source.randbytes(4 * inner * hidden) for _ in range(experts)]
    down = [source.randbytes(2 * inner * hidden) for _ in range(experts)]
    if stacked:
      for name, shape, data in (
        ("gate_up_proj", (experts, 2 * inner, hidden), gate_up),
        ("down_proj", (experts, hidden, inner), down),
      ):
        tensors[f"{mlp}experts.{name}"] = ("BF16", shape, b"".join(data))
      continue
    half = 2 * inner * hidden
    for e in range(experts):
      expert = f"{mlp}experts.{e}."
      tensors[expert + "gate_proj.weight"] = ("BF16", (inner, hidden), gate_up[e][:half])
      tensors[expert + "up_proj.weight"] = ("BF16", (inner, hidden), gate_up[e][half:])
      tensors[expert + "down_proj.weight"] = ("BF16", (hidden, inner), down[e])
  return tensors


@pytest.mark.parametrize("form", ["safetensors", "dcp"])
def test_stacked_experts_at_rest_are_the_experts(program, tmp_path, form):
  """vllm-project/vllm#36997, EfficientMoE/MoE-Infinity#108, NVIDIA-NeMo/Megatron-Bridge#4706."""
  c = config(
    architectures=["Qwen3MoeForCausalLM"],
    model_type="qwen3_moe",
    num_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=32,
    decoder_sparse_step=1,
    mlp_only_layers=[],
    norm_topk_prob=True,
  )
  write_checkpoint(tmp_path / "apart", c, _experts(c, False))
  if form == "dcp":
    save_dcp(tmp_path / "stacked", c, report_models.as_torch(_experts(c, True)))
  else:
    write_checkpoint(tmp_path / "stacked", c, _experts(c, True))
  for folder in ("apart", "stacked"):
    program.succeed("convert", folder, folder + "-ranks", "--to", "vllm:tp=2")
  assert program.same_ranks("apart-ranks", "stacked-ranks")
  program.succeed("verify", "apart", "stacked-ranks")


def test_names_without_the_prefix_of_the_class_are_the_same_names(program, tmp_path):
  """vllm-project/vllm#19250, sgl-project/sglang#6990, mlc-ai/mlc-llm#3411: Qwen3-Embedding."""
  c = config(tie_word_embeddings=True)
  for folder, prefix in (("bare", ""), ("usual", "model.")):
    write_checkpoint(tmp_path / folder, c, random_tensors(c, prefix))
    program.succeed("convert", folder, folder + "-ranks", "--to", "vllm:tp=2")
  assert program.same_ranks("bare-ranks", "usual-ranks")
  program.succeed("convert", "bare", "hf", "--to", "hf")
  program.succeed("verify", "bare", "hf")
  assert b'"embed_tokens.weight"' in (tmp_path / "hf" / "model.safetensors").read_bytes()


def _fp8(c, scale_dtype):
  """All projections in FP8 with blocks of 128 x 128 and scales that are powers of two."""
  source, out = random.Random(3), {}
  for name, tensor in random_tensors(c).items():
    if not name.endswith("proj.weight"):
      out[name] = tensor
      continue
    rows, cols = tensor[1]
    out[name] = ("F8_E4M3", (rows, cols), report_models.finite_e4m3(source.randbytes(rows * cols)))
    grid = (math.ceil(rows / 128), math.ceil(cols / 128))
    exponents = [source.randrange(110, 130) for _ in range(math.prod(grid))]
    if scale_dtype == "F32":
      data = b"".join(struct.pack("<f", 2.0 ** (e - 127)) for e in exponents)
    else:
      data = bytes(exponents)
    out[name + "_scale_inv"] = (scale_dtype, grid, data)
  return out


def test_scales_in_e8m0_are_the_powers_of_two_that_they_mean(program, tmp_path):
  """deepseek-ai/DeepSeek-V3#994, sgl-project/sglang#38446."""
  section = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
    "scale_fmt": "ue8m0",
  }
  c = config(hidden_size=192, intermediate_size=320, head_dim=48, quantization_config=section)
  for folder, dtype in (("bytes", "F8_E8M0"), ("floats", "F32")):
    write_checkpoint(tmp_path / folder, c, _fp8(c, dtype))
    program.succeed("convert", folder, folder + "-hf", "--to", "hf")
  program.succeed("verify", "floats-hf", "bytes-hf")


_FILES_OF_THE_MODEL = [
  "configuration_tiny.py",
  "modeling_tiny.py",
  "tokenization_tiny.py",
  "processor_config.json",
  "tekken.json",
  "tiny.tiktoken",
  "additional_chat_templates/tool_use.jinja",
  "LICENSE",
]


@pytest.mark.parametrize("to", ["hf", "vllm:tp=1"])
def test_the_files_of_a_model_are_copied_or_named(program, tmp_path, to):
  """NovaSky-AI/SkyRL#1726, NVIDIA-NeMo/Megatron-Bridge#917, NVIDIA/Model-Optimizer#2060."""
  c = config(auto_map={"AutoConfig": "configuration_tiny.TinyConfig"})
  folder = write_checkpoint(tmp_path / "in", c, random_tensors(c))
  (folder / "additional_chat_templates").mkdir()
  for name in _FILES_OF_THE_MODEL:
    (folder / name).write_text("x")
  tokenizer = {"auto_map": {"AutoTokenizer": ["tokenization_tiny.TinyTokenizer", None]}}
  (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
  said = program.succeed("convert", "in", "out", "--to", to)
  lost = [
    name
    for name in _FILES_OF_THE_MODEL
    if not (tmp_path / "out" / name).exists() and name.rsplit("/", maxsplit=1)[-1] not in said
  ]
  assert not lost


def test_hf_can_be_written_in_another_dtype(program, tmp_path):
  """pytorch/torchtitan#2041, NVIDIA-NeMo/Automodel#3193."""
  c = config()
  write_checkpoint(tmp_path / "in", c, report_models.real_tensors(c, "F32"))
  program.succeed("convert", "in", "two", "--to", "dcp:shard=1,dtype=bfloat16")
  program.succeed("convert", "two", "want", "--to", "hf")
  program.succeed("convert", "in", "have", "--to", "hf:dtype=bfloat16")
  program.succeed("verify", "want", "have")


@pytest.mark.parametrize("kind", ["module", "vision"])
def test_megatrons_names_below_a_prefix_are_found(program, tmp_path, kind):
  """radixark/miles#735, THUDM/slime#1815, NVIDIA-NeMo/Speech#11256."""
  import torch

  c = config()
  write_checkpoint(tmp_path / "hf", c, random_tensors(c))
  program.succeed("convert", "hf", "plain", "--to", "torch_dist:shard=1,layers=single")
  prefix = "module." if kind == "module" else "language_model."
  state = {prefix + name: t for name, t in report_models.load_dcp(tmp_path / "plain").items()}
  if kind == "vision":
    state["vision_model.patch.weight"] = torch.ones(4, 4)
  save_dcp(tmp_path / "in", c, state)
  program.succeed("convert", "in", "out", "--to", "hf")
  program.succeed("verify", "hf", "out")


def test_names_of_wrappers_do_not_count(program, tmp_path):
  """pytorch/pytorch#101107, verl-project/verl#3870."""
  c = config()
  tensors = random_tensors(c)
  write_checkpoint(tmp_path / "hf", c, tensors)
  wrapped = {
    re.sub(r"(layers[.][0-9]+)[.]", r"\1._orig_mod.", name): t
    for name, t in report_models.as_torch(tensors).items()
  }
  save_dcp(tmp_path / "in", c, {"model": wrapped})
  program.succeed("convert", "in", "out", "--to", "hf")
  program.succeed("verify", "hf", "out")


def test_an_adapter_that_was_not_merged_is_named(program, tmp_path):
  """TIGER-AI-Lab/verl-tool#125, verl-project/verl#7327."""
  import torch

  c = config()
  state = {
    "base_model.model." + re.sub(r"(q_proj|v_proj)[.]", r"\1.base_layer.", name): t
    for name, t in report_models.as_torch(random_tensors(c)).items()
  }
  for n in range(2):
    for name, rows in (("q_proj", 64), ("v_proj", 32)):
      lora = f"base_model.model.model.layers.{n}.self_attn.{name}.lora_"
      state[lora + "A.default.weight"] = torch.ones(4, 64)
      state[lora + "B.default.weight"] = torch.ones(rows, 4)
  save_dcp(tmp_path / "in", c, {"model": state})
  said = program.fail("convert", "in", "out", "--to", "hf")
  assert re.search("lora|adapter|base_layer", said, re.IGNORECASE)


def test_a_class_that_fsdp_renamed_is_that_class(program, tmp_path):
  """huggingface/transformers#40750."""
  c = config(architectures=["FSDPQwen3ForCausalLM"])
  write_checkpoint(tmp_path / "in", c, random_tensors(c))
  program.succeed("convert", "in", "out", "--to", "vllm:tp=2")
  program.succeed("verify", "in", "out")


def test_a_quantization_section_without_quantised_tensors_is_not_written(program, tmp_path):
  """sgl-project/sglang#7593, huggingface/transformers#35471."""
  section = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
  }
  c = config(quantization_config=section)
  write_checkpoint(tmp_path / "in", c, random_tensors(c))
  said = program.succeed("convert", "in", "out", "--to", "hf")
  assert "quantization_config" not in json.loads((tmp_path / "out" / "config.json").read_text())
  assert "quantization_config" in said


@pytest.mark.parametrize(
  "to", ["vllm:tp=2", "vllm:tp=2,dtype=bfloat16", "fsdp:shard=1,dtype=bfloat16"]
)
@pytest.mark.parametrize("stored", ["F64", "F8_E4M3"])
def test_values_in_another_dtype_than_the_engine_has_are_converted_or_refused(
  program, tmp_path, stored, to
):
  """invoke-ai/InvokeAI#9478, oxiglade/mlx-rs#309."""
  c = config()
  if stored == "F64":
    tensors = report_models.real_tensors(c, "F64")
  else:
    tensors = random_tensors(c)
    for name, (_, shape, data) in tensors.items():
      if "proj" in name:
        tensors[name] = (stored, shape, report_models.finite_e4m3(data[::2]))
  write_checkpoint(tmp_path / "in", c, tensors)
  status, said = program.run("convert", "in", "out", "--to", to)
  if status == 0:
    assert report_models.dtypes_of(tmp_path / "out" / "rank-00000.safetensors") == {"BF16"}
  else:
    assert re.search("F64|F8", said)
