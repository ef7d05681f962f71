# SPDX-License-Identifier: Apache-2.0
"""A trainer behind vLLM's own interface: its factory, its HTTP client and a WeightSource.

`factory_trainer.py SERVER WORKERS FROM TO`: opens the engine with the tensors of the checkpoint
FROM, then makes them those of TO, sends them, and prints the version.
"""

import sys

import torch
from reshard.vllm.trainer_engine import TrainerInit
from trainer import checkpoint
from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource
from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
from vllm.plugins import load_general_plugins


class Held(WeightSource):
  """The tensors of a checkpoint, which a step of training replaces."""

  def __init__(self, path):
    self.tensors = checkpoint(path)

  def metadata(self):
    return [ParamMeta(name, t.dtype, tuple(t.shape)) for name, t in self.tensors.items()]

  def __iter__(self):
    yield from self.tensors.items()


def main():
  server, workers, before, after = sys.argv[1:]
  load_general_plugins()  # registers the backend, as it does in an engine
  source = Held(before)
  engine = WeightTransferTrainerFactory.trainer_init(
    TrainerInit(rank=0, options={"workers": int(workers)}),
    client=HTTPVLLMWeightSyncClient(server),
    source=source,
  )
  with torch.no_grad():
    source.tensors = checkpoint(after)
  engine.send_weights()
  print(engine.trainer.version)
  engine.shutdown()


if __name__ == "__main__":
  main()
