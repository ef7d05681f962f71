# SPDX-License-Identifier: Apache-2.0
"""Protects: adapters of experts are put into SGLang's slots as SGLang puts those that it reads from files; and an engine
whose loader does not find the experts' weights behind their adapters is refused. With SGLang's own Qwen3-MoE and LoRAManager."""

import multiprocessing
import traceback
import types

import frameworks  # noqa: F401 - before transformers
import pytest
import sglang_served
import torch
from ranks import TIMEOUT

from reshard.engines.invitation import Invitation

pytest.importorskip("sglang")

SAID = sglang_served.ADAPTERS["default"][1]
SIZES = {
  "vocab_size": 101, "hidden_size": 32, "intermediate_size": 64, "moe_intermediate_size": 16, "num_experts": 4,
  "num_experts_per_tok": 2, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
  "tie_word_embeddings": False, "architectures": ["Qwen3MoeForCausalLM"],
}  # fmt: skip


def linear():
  """{name of a module: shape of its weight}, of attention and of every expert."""
  modules = {"q_proj": (32, 32), "k_proj": (16, 32), "v_proj": (16, 32), "o_proj": (32, 32)}
  experts = {"gate_proj": (16, 32), "up_proj": (16, 32), "down_proj": (32, 16)}
  found = {}
  for layer in (0, 1):
    prefix = f"model.layers.{layer}."
    found |= {f"{prefix}self_attn.{name}": shape for name, shape in modules.items()}
    found |= {f"{prefix}mlp.experts.{i}.{name}": shape for i in range(4) for name, shape in experts.items()}
  return found


def factors():
  """{name in the trainer: shape}"""
  found = {}
  for module, (rows, columns) in linear().items():
    found[f"base_model.model.{module}.lora_A.default.weight"] = (SAID["r"], columns)
    found[f"base_model.model.{module}.lora_B.default.weight"] = (rows, SAID["r"])
  return found


def weights():
  """{name in the checkpoint: shape}"""
  found = {f"{module}.weight": shape for module, shape in linear().items()}
  for layer in (0, 1):
    prefix = f"model.layers.{layer}."
    found |= {f"{prefix}self_attn.{x}_norm.weight": (8,) for x in "qk"} | {f"{prefix}mlp.gate.weight": (4, 32)}
    found |= {f"{prefix}{x}_layernorm.weight": (32,) for x in ("input", "post_attention")}
  return found | {"model.norm.weight": (32,), "model.embed_tokens.weight": (101, 32), "lm_head.weight": (101, 32)}


def engine(folder):
  """A rank of SGLang's Qwen3-MoE."""
  import sglang_real
  from sglang.srt.distributed.parallel_state import init_distributed_environment, initialize_model_parallel
  from sglang.srt.layers.dp_attention import initialize_dp_attention
  from sglang.srt.layers.moe import initialize_moe_config
  from sglang.srt.models.qwen3_moe import Qwen3MoeForCausalLM
  from sglang.srt.runtime_context import SpawnRanks, publish
  from transformers import AutoConfig, Qwen3MoeConfig

  from reshard.tracing.sglang import engine_config

  Qwen3MoeConfig(**SIZES).save_pretrained(folder / "model")
  arguments = engine_config(folder / "model", dtype="bfloat16")
  publish(arguments, role="scheduler", ranks=SpawnRanks(world_rank=0))
  where = {"distributed_init_method": f"file://{folder / 'store'}", "backend": "gloo"}
  init_distributed_environment(world_size=1, rank=0, local_rank=0, **where)
  initialize_model_parallel(backend="gloo")
  initialize_dp_attention(arguments)
  initialize_moe_config()
  torch.set_default_dtype(torch.bfloat16)
  model = Qwen3MoeForCausalLM(AutoConfig.from_pretrained(folder / "model"))
  torch.set_default_dtype(torch.float32)
  return model, lambda folders: sglang_real.manager_of(model, folders, sglang_served.LINEAR)


class Caller:
  """SGLang's caller of the loader."""

  def __init__(self, model, manager):
    self.get_model_runner = lambda: types.SimpleNamespace(model=model, lora_manager=manager)

  def updates(self, said, model, tensors):
    from reshard.sglang.adapters import Adapters

    adapters = Adapters(said, model)
    adapters.make(model, tensors)
    adapters.apply(model)
    return adapters.untaken


def invitation(tensors, adapters):
  table = [[name, "f32", list(shape), list(shape)] for name, shape in tensors.items()]
  return Invitation(
    url="", job="job", secret="secret", trainers=1, engines=[1], transport="shm", deadline=1.0, route="auto", in_place=False,
    verify=False, tensors=table, config="", adapters=adapters,
  )  # fmt: skip


def run(pipe, folder):
  """What happens in the engine's process: the untaken factors, differences of slots, how much was compared, a refusal."""
  from reshard.sglang.models import updated_models

  torch.set_num_threads(1)
  try:
    model, manager_of = engine(folder)
    old, new = (sglang_served.values(factors(), seed) for seed in (1, 2))
    folders = [sglang_served.write(folder / str(i), "default", tensors) for i, tensors in enumerate((old, new))]
    manager = manager_of({"policy": folders[0]})
    (ref,) = manager.lora_refs.values()
    manager.fetch_new_loras({ref.lora_id})
    said = invitation(factors(), {"default": {"name": "policy", "config": {"peft_type": "LORA", **SAID}}})
    untaken = Caller(model, manager).updates(said, model, new)
    mine = sglang_served.held_of(manager, "policy", True)
    manager.unload_lora_adapter(ref)
    assert manager.load_lora_adapter(type(ref)(lora_name="policy", lora_path=folders[1], pinned=False)).success
    theirs = sglang_served.held_of(manager, "policy", False)
    try:
      updated_models(invitation(weights(), {}), 0, model, [])
      refusal = ""
    except Exception as error:
      refusal = f"{type(error).__name__}: {error}"
    pipe.send((untaken, sglang_served.differing(mine, theirs), len(mine), refusal))
  except BaseException:
    pipe.send(traceback.format_exc())


def test_adapters_of_experts_are_those_that_sglang_reads(tmp_path):
  context = multiprocessing.get_context("spawn")
  test, there = context.Pipe()
  process = context.Process(target=run, args=(there, tmp_path), daemon=True)
  process.start()
  assert test.poll(5 * TIMEOUT), "SGLang hangs"
  answer = test.recv()
  process.join(TIMEOUT)
  assert not isinstance(answer, str), answer
  untaken, different, held, refusal = answer
  # Of each layer the factors of 2 fused projections and 8 of experts, and 4 slots of A and of B.
  assert not untaken and not different and held > 2 * 2 * (2 + 8) + 2 * 2 * 4
  assert "takes none of the trainer's tensors for 'model.layers.0.mlp.experts.base_layer.w13_weight'" in refusal
