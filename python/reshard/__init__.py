# SPDX-License-Identifier: Apache-2.0
"""reshard moves the weights of a language model from any parallel layout to any other."""

from reshard._core import DType, Layout, Model, Plan, layout, open_model, plan
from reshard._errors import (
  AbortedError,
  CorruptError,
  DeadlineError,
  Error,
  InvalidArgumentError,
  IoError,
  NotFoundError,
  UnsupportedError,
)

__all__ = [
  "AbortedError",
  "CorruptError",
  "DType",
  "DeadlineError",
  "Error",
  "InvalidArgumentError",
  "IoError",
  "Layout",
  "Model",
  "NotFoundError",
  "Plan",
  "UnsupportedError",
  "layout",
  "open_model",
  "plan",
]
