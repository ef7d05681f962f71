# SPDX-License-Identifier: Apache-2.0
"""Runs the program, and compares a rank of its output with what vLLM holds."""

import os
import re
import subprocess

import torch

# What vLLM creates for activations and drops or fills after the load: not weights.
_ACTIVATIONS = re.compile(r"\.([qkv]|prob)_(scale|zero_point)$|input_(global_)?scale$")


def reshard(*arguments):
  """What the program says; a refusal fails the test with its own words."""
  command = [os.environ["RESHARD_BIN"], *map(str, arguments)]
  done = subprocess.run(command, capture_output=True, text=True)
  assert done.returncode == 0, f"{arguments}: exit {done.returncode}\n{done.stderr}"
  return done.stdout


def difference(name, vllm, ours):
  if vllm is None or ours is None:
    return f"{name}: only {'vLLM' if ours is None else 'reshard'} has it"
  if (vllm.dtype, vllm.shape) != (ours.dtype, ours.shape):
    return f"{name}: {vllm.dtype} {list(vllm.shape)} in vLLM, {ours.dtype} {list(ours.shape)} here"
  same = torch.equal(*(t.contiguous().flatten().view(torch.uint8) for t in (vllm, ours)))
  return None if same else f"{name}: other bytes"


def wrong_on(rank, vllm, ours, by_device):
  """(what differs, how many parameters were compared) of one rank."""
  names = [n for n in sorted(vllm.keys() | ours.keys()) if n in ours or not _ACTIVATIONS.search(n)]
  wrong = []
  for name in names:
    held = vllm.get(name)
    if held is not None and name in ours and by_device and re.search(by_device, name):
      held = held.to(ours[name].dtype)
    if said := difference(name, held, ours.get(name)):
      wrong.append(f"rank {rank}: {said}")
  return wrong, len(names)
