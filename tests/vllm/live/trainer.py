# SPDX-License-Identifier: Apache-2.0
"""One rank of a trainer: holds a checkpoint in some layout and updates a server from it.

The line "update PATH [PHASE]" makes the weights those of a checkpoint; with PHASE the process kills itself there.
"""

import os
import signal
from pathlib import Path

import driver
import reshard
import reshard.hf
import torch
from safetensors.torch import load_file


def checkpoint(path):
  return {k: v for f in sorted(Path(path).glob("*.safetensors")) for k, v in load_file(f).items()}


class Whole:
  """The layout hf: every tensor whole, on rank 0."""

  text = "hf"

  def __init__(self, args):
    self.tensors = checkpoint(args.model)
    names = [t.name for t in args.layout.local(0)]
    self.tensors = {name: self.tensors[name] for name in names}

  def load(self, path):
    new = checkpoint(path)
    for name, tensor in self.tensors.items():
      tensor.copy_(new[name])


class Fsdp:
  """torch's fully_shard over all ranks."""

  def __init__(self, args):
    import transformers
    from torch import distributed
    from torch.distributed.fsdp import fully_shard

    store = distributed.FileStore(args.store, args.size)
    distributed.init_process_group(
      "gloo", store=store, rank=args.rank, world_size=args.size
    )
    self._from = transformers.AutoModelForCausalLM.from_pretrained
    self.module = self._from(args.model, dtype=torch.float32)
    mesh = distributed.init_device_mesh("cpu", (args.size,))
    for layer in self.module.model.layers:
      fully_shard(layer, mesh=mesh)
    fully_shard(self.module, mesh=mesh)
    held = {name: p.to_local().detach() for name, p in self.module.named_parameters()}
    self.tensors = {t.name: held[t.name] for t in args.layout.local(args.rank)}

  def load(self, path):
    new = self._from(path, dtype=torch.float32).state_dict()
    for name, p in self.module.named_parameters():
      chunks = list(new[name].chunk(p.device_mesh.size()))
      rank = p.device_mesh.get_local_rank()
      if rank < len(chunks):
        p.to_local().detach().copy_(chunks[rank])


class Held:
  """Any layout, in memory that reshard fills from a checkpoint."""

  def __init__(self, args):
    self._args = args
    self.tensors = reshard.hf.load(args.model, args.layout, args.rank)

  def load(self, path):
    reshard.hf.load(path, self._args.layout, self._args.rank, self.tensors)


def main():
  args = driver.options()
  args.layout = reshard.layout(args.text, reshard.open_model(args.model))
  kind = {"hf": Whole, "fsdp": Fsdp}.get(args.text.partition(":")[0], Held)
  holder = kind(args)
  die_at = [None]

  def on_phase(phase):
    if phase == die_at[0]:
      os.kill(os.getpid(), signal.SIGKILL)

  def load(path, phase=None):
    die_at[0] = phase
    holder.load(path)

  driver.serve(args, args.layout, holder.tensors, load, on_phase=on_phase)


if __name__ == "__main__":
  main()
