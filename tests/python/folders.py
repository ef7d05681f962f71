# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in one file, written and compared byte for byte, and the program run on them."""

import json

import safetensors.torch
import torch

import program


def write(folder, tensors, config):
  folder.mkdir()
  safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
  (folder / "config.json").write_text(json.dumps(config))
  return folder


def read(folder):
  return safetensors.torch.load_file(folder / "model.safetensors")


def ranks(folder):
  """The tensors of each rank."""
  found = program.RankFolder(folder)
  return {r: safetensors.torch.load_file(found.folder / f) for r, f in found.files.items()}


def bytes_of(tensor):
  return tensor.contiguous().reshape(-1).view(torch.uint8)


def same(left, right):
  assert left.keys() == right.keys()
  for name, tensor in left.items():
    other = right[name]
    assert tensor.dtype == other.dtype, name
    assert tensor.numel() == 1 or tensor.shape == other.shape, name
    assert torch.equal(bytes_of(tensor), bytes_of(other)), name


def expect_layout_of_values(folder, values, config, layout, tmp_path):
  """Ranks hold of a quantised checkpoint what they hold of its values."""
  write(tmp_path / "plain", values, config)
  command("convert", folder, tmp_path / "a", "--to", layout)
  command("convert", tmp_path / "plain", tmp_path / "b", "--to", layout)
  a, b = ranks(tmp_path / "a"), ranks(tmp_path / "b")
  for rank, tensors in a.items():
    same(tensors, b[rank])


def command(*arguments, fails=False):
  done = program.run(*arguments)
  assert (done.returncode != 0) == fails, f"{arguments}:\n{done.stdout}{done.stderr}"
  return done.stderr if fails else done.stdout
