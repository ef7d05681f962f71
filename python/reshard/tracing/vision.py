# SPDX-License-Identifier: Apache-2.0
"""torchvision for imports alone: classes with images import it, and no layout depends on it."""

import importlib
import sys
from typing import Any

import torch

_kept: list[Any] = []


def import_torchvision() -> None:
  """Imports torchvision if it is installed.

  Package indexes have its CUDA build, whose operators do not load beside a torch for CPUs. Then they are
  declared without code: imports work, calls do not."""
  try:
    importlib.import_module("torchvision")
  except ModuleNotFoundError:
    return
  except RuntimeError as error:
    if "does not exist" not in str(error):
      raise
    library: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for operator in ("nms", "qnms"):
      library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _kept.append(library)
    for name in [n for n in sys.modules if n.partition(".")[0] == "torchvision"]:
      del sys.modules[name]
    importlib.import_module("torchvision")
