# SPDX-License-Identifier: Apache-2.0
"""One rank of a trainer of TRL. Prints a line of JSON for each update of the server, and for each log of TRL.

  trainer.py KIND CHECKPOINT URL, of KINDS. STALE=1: updates after the first send the weights of the first.
"""

import json
import os
import pathlib
import sys
from unittest import mock

import datasets
import peft
import reshard.trl
import torch
import transformers
import trl
from accelerate import DistributedType, PartialState
from torch.distributed.tensor import DTensor

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "examples/python"))
import grpo_tiny

STEPS = 3
KINDS = ("grpo", "ddp", "fsdp", "peft", "rloo", "online_dpo")
COMMON = {
  "use_cpu": True, "bf16": False, "report_to": "none", "save_strategy": "no", "seed": 0, "gradient_checkpointing": False,
  "disable_tqdm": True, "logging_steps": 1, "max_steps": STEPS, "learning_rate": 1e-2, "beta": 0.0, "use_vllm": True,
  "vllm_mode": "server", "lr_scheduler_type": "constant",
}  # fmt: skip


class Log(transformers.TrainerCallback):
  def on_log(self, args, state, control, logs=None, **_):
    say({"logs": {k: v for k, v in logs.items() if isinstance(v, float | int)}})


def say(what):
  if int(os.environ.get("RANK", "0")) == 0:
    print("said", json.dumps(what), flush=True)


def updated(update):
  checked = update.trainer.checked
  say({"version": update.report.version, "equal": checked.equal, "tensors": checked.tensors})


def with_fsdp(args_of, trainer_of_args):
  """A trainer under FSDP2. accelerate leaves FSDP out, in silence, where ranks are CPUs: it is told that they are not."""
  args = args_of()
  assert args.distributed_state.distributed_type == DistributedType.MULTI_CPU
  PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
  return trainer_of_args(args)


def trainer_of(kind, folder, url):
  size = int(os.environ.get("WORLD_SIZE", "1"))
  data = datasets.Dataset.from_list(list(grpo_tiny.prompts(64)))
  common = COMMON | {"output_dir": os.environ["OUT"], "vllm_server_base_url": url, "per_device_train_batch_size": 16 // size}
  if kind == "fsdp":
    wrapped = {"fsdp_version": 2, "transformer_layer_cls_to_wrap": ["Qwen3DecoderLayer"], "cpu_ram_efficient_loading": False}
    common |= {"fsdp": "full_shard auto_wrap", "fsdp_config": wrapped}
  if kind == "online_dpo":
    common |= {"max_new_tokens": 16, "max_length": 64}
    from trl.experimental.online_dpo import OnlineDPOConfig, OnlineDPOTrainer

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    # Its constructor asks torch for the current accelerator, which a machine without GPUs does not have.
    with mock.patch("torch.accelerator.current_accelerator", lambda: torch.device("cpu")):
      return OnlineDPOTrainer(
        model=model, reward_funcs=by_text, args=OnlineDPOConfig(**common), train_dataset=data, processing_class=tokenizer,
        callbacks=[Log()],
      )  # fmt: skip
  common |= {"num_generations": 4, "max_completion_length": 16}
  lora = peft.LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False) if kind == "peft" else None
  if kind == "fsdp":
    return with_fsdp(lambda: trl.GRPOConfig(**common), lambda args: trl.GRPOTrainer(
      model=folder, reward_funcs=grpo_tiny.reward, args=args, train_dataset=data, callbacks=[Log()]
    ))  # fmt: skip
  made, config = (trl.RLOOTrainer, trl.RLOOConfig) if kind == "rloo" else (trl.GRPOTrainer, trl.GRPOConfig)
  return made(
    model=folder, reward_funcs=grpo_tiny.reward, args=config(**common), train_dataset=data, peft_config=lora, callbacks=[Log()]
  )


def by_text(prompts, completions, **_):
  return [float(len(set(text.split()))) for text in completions]


def main():
  kind, folder, url = sys.argv[1:]
  assert kind in KINDS
  torch.manual_seed(0)
  reshard.trl.install(on_update=updated, verify=True, check=1.0, deadline=600.0)
  trainer = trainer_of(kind, folder, url)
  if os.environ.get("STALE"):
    kept = trainer.vllm_generation.sync_weights
    trainer.vllm_generation.sync_weights = lambda: kept() if trainer.state.global_step == 0 else None
  trainer.train()
  say({"sharded": sum(isinstance(p, DTensor) for p in trainer.model.parameters())})


if __name__ == "__main__":
  main()
