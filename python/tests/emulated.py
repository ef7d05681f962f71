# SPDX-License-Identifier: Apache-2.0
"""Processes that run on the emulated GPU: they load a stand-in for CUDA's driver."""

import os
import struct
from pathlib import Path

import pytest

PROGRAM = os.environ.get("RESHARD_BIN", str(Path(__file__).parents[2] / "build/bin/reshard"))
LIBRARY = Path(os.environ.get("RESHARD_EMULATED_GPU", Path(PROGRAM).parents[1] / "lib/emulated_gpu"))


def environment(folder):
  """What such a process needs in its environment; writes a file with kernels, whose content nothing reads, in a folder."""
  if not (LIBRARY / "libcuda.so.1").exists():
    pytest.skip(f"no stand-in for CUDA's driver in {LIBRARY}: it is built with the tests in C++")
  image = folder / "kernels.fatbin"
  image.write_bytes(struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 0))
  libraries = [str(LIBRARY), *filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":"))]
  return {"LD_LIBRARY_PATH": ":".join(libraries), "RESHARD_CUDA_IMAGE": str(image), "RESHARD_TEST_GPU": ""}
