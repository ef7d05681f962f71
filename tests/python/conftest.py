# SPDX-License-Identifier: Apache-2.0
"""Fixtures: checkpoints are written once a session and read-only to every test."""

import pytest

import checkpoints
from oracle_model import read_model


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
