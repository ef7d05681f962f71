# SPDX-License-Identifier: Apache-2.0
"""Fixtures: checkpoints are written once a session and read-only to every test."""

import pytest

import checkpoints
import program
from oracle_model import read_model
from oracle_tensor import difference


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
  """checkpoint(name, **options) -> (folder, model); see checkpoints.write_checkpoint."""
  written = {}

  def get(name, **options):
    key = (name, *sorted(options.items(), key=str))
    if key not in written:
      folder = checkpoints.write_checkpoint(tmp_path_factory.mktemp(name) / "hf", name, **options)
      written[key] = folder, read_model(folder)
    return written[key]

  return get


@pytest.fixture(scope="session")
def home_bytes(tmp_path_factory, checkpoint):
  """home_bytes(name, **options): the bytes of the checkpoint as the program writes layout hf.

  What comes back from any other layout must be this file. It is checked here to hold the tensors
  that transformers wrote, bit for bit: the order of the names alone is the program's own.
  """
  written = {}

  def get(name, **options):
    key = (name, *sorted(options.items(), key=str))
    if key not in written:
      folder, model = checkpoint(name, **options)
      out = program.convert(folder, tmp_path_factory.mktemp("home") / "hf", "hf", "hf")
      assert not difference(model.tensors, read_model(out).tensors)
      written[key] = (out / "model.safetensors").read_bytes()
    return written[key]

  return get
