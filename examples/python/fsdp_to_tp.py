# SPDX-License-Identifier: Apache-2.0
"""An FSDP2 trainer and a tensor-parallel engine, as two torchrun programs that meet at an address.

  head -c 24 /dev/urandom | base64 > key; chmod 600 key
  torchrun --nproc-per-node=2 --master-port=29501 examples/python/fsdp_to_tp.py trainer tcp://127.0.0.1:29400 key &
  torchrun --nproc-per-node=2 --master-port=29502 examples/python/fsdp_to_tp.py engine tcp://127.0.0.1:29400 key

Needs torch and transformers. The trainer's ranks are 0 and 1 of the group, the engine's 2 and 3.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

import torch

import reshard

TRAINERS, ENGINES, STEPS = 2, 2, 3
TIMEOUT = 300  # seconds: the engine waits while the trainer imports and makes its model
CONFIG = {
  "architectures": ["LlamaForCausalLM"],
  "model_type": "llama",
  "hidden_size": 64,
  "intermediate_size": 128,
  "num_hidden_layers": 2,
  "num_attention_heads": 8,
  "num_key_value_heads": 4,
  "vocab_size": 256,
  "max_position_embeddings": 64,
  "rms_norm_eps": 1e-6,
  "hidden_act": "silu",
  "tie_word_embeddings": False,
  "torch_dtype": "bfloat16",
}


def open_model() -> reshard.Model:
  with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "config.json")
    path.write_text(json.dumps(CONFIG))
    return reshard.open_model(path)


def train(group: reshard.ProcessGroup, source: reshard.Layout, target: reshard.Layout) -> None:
  import torch.distributed as dist
  from torch.distributed.fsdp import fully_shard
  from transformers import LlamaConfig, LlamaForCausalLM

  dist.init_process_group("gloo")
  torch.manual_seed(0)
  model = LlamaForCausalLM(LlamaConfig(**CONFIG)).to(torch.bfloat16)
  for layer in model.model.layers:
    fully_shard(layer)
  fully_shard(model)
  optimiser = torch.optim.SGD(model.parameters(), lr=0.1)

  # Parameters are DTensors; a session takes their local shards, where the optimiser writes them.
  shards = dict(model.named_parameters())
  with reshard.Session(
    group, source=source, source_tensors=shards, target=target, verify="always", timeout=TIMEOUT
  ) as session:
    for step in range(1, STEPS + 1):
      tokens = torch.randint(CONFIG["vocab_size"], (1, 16))  # type: ignore[call-overload]
      loss = model(input_ids=tokens, labels=tokens).loss
      loss.backward()
      optimiser.step()
      optimiser.zero_grad()
      session.refit(step)
    session.verify()
  dist.destroy_process_group()


def serve(group: reshard.ProcessGroup, source: reshard.Layout, target: reshard.Layout) -> None:
  # In place of an engine's parameters: dict(engine.named_parameters()).
  weights = {t.name: torch.zeros(t.shape, dtype=torch.bfloat16) for t in target.local(group.rank)}
  with reshard.Session(
    group, source=source, target=target, target_tensors=weights, verify="always", timeout=TIMEOUT
  ) as session:
    for step in range(1, STEPS + 1):
      report = session.refit(step)
      norm = sum(float(w.float().square().sum()) for w in weights.values()) ** 0.5
      print(f"rank {group.rank} serves version {session.target_version().version}: {report.bytes:,} bytes, norm {norm:.3f}")
    session.verify()


def main(role: str, url: str, secret_file: str) -> None:
  model = open_model()
  source = reshard.layout(f"fsdp:shard={TRAINERS}", model)
  target = reshard.layout(f"vllm:tp={ENGINES},offset={TRAINERS}", model)
  rank = int(os.environ["RANK"]) + (TRAINERS if role == "engine" else 0)
  with reshard.join(url, rank=rank, size=TRAINERS + ENGINES, secret_file=secret_file, timeout=TIMEOUT) as group:
    (serve if role == "engine" else train)(group, source, target)


if __name__ == "__main__":
  if len(sys.argv) != 4:
    raise SystemExit("usage: fsdp_to_tp.py trainer|engine URL SECRET_FILE")
  main(*sys.argv[1:])
