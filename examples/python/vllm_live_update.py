# SPDX-License-Identifier: Apache-2.0
"""Updates a running vLLM server from a trainer, after each training step.

Start a server in one terminal:

    VLLM_SERVER_DEV_MODE=1 vllm serve CHECKPOINT --weight-transfer-config '{"backend": "reshard"}'

and this trainer, FSDP2 over three processes, in another:

    torchrun --nproc-per-node 3 examples/python/vllm_live_update.py CHECKPOINT http://127.0.0.1:8000
"""

import argparse
from typing import Any

import reshard
import reshard.vllm
import torch
import transformers
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def fsdp_module(checkpoint: str) -> Any:
  """A model of transformers whose parameters are cut over all processes."""
  module = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype="auto")
  mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
  for layer in module.model.layers:
    fully_shard(layer, mesh=mesh)
  fully_shard(module, mesh=mesh)
  return module


def train(module: Any, step: int) -> None:
  """One step on made-up data; a real trainer goes here."""
  torch.manual_seed(step)
  tokens = torch.randint(0, module.config.vocab_size, (1, 8))
  module(input_ids=tokens, labels=tokens).loss.backward()
  with torch.no_grad():
    for parameter in module.parameters():
      if parameter.grad is not None:
        parameter.add_(parameter.grad, alpha=-0.1)
        parameter.grad = None


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("checkpoint")
  parser.add_argument("server")
  parser.add_argument("--steps", type=int, default=3)
  args = parser.parse_args()

  distributed.init_process_group("gloo")
  rank, size = distributed.get_rank(), distributed.get_world_size()
  module = fsdp_module(args.checkpoint)

  # What each process holds: its rows of every parameter, where torch has them.
  layout = reshard.layout(f"fsdp:shard={size}", reshard.open_model(args.checkpoint))
  mine = {name: p.to_local().detach() for name, p in module.named_parameters()}

  client = reshard.vllm.HttpClient(args.server) if rank == 0 else None
  with reshard.vllm.Trainer(layout, mine, client=client, rank=rank, size=size) as trainer:
    for step in range(args.steps):
      train(module, step)
      report = trainer.update()
      if rank == 0:
        print(report, flush=True)
  distributed.destroy_process_group()


if __name__ == "__main__":
  main()
