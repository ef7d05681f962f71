# SPDX-License-Identifier: Apache-2.0
"""Distributed tensors from any mesh and placements to any other, one at a time, in batches, or as modules.

    from reshard.dtensor import Refit, batch, xferdtensor

`xferdtensor` moves one tensor, `batch` and `xferdtensors` many at once, and `Refit` all tensors of a
module; `xdtensor_reshard` and `mxn_cast` have the arguments of nccl.m2n's and torch's. Needs torch.
docs/dtensor.md shows each.
"""

from reshard.dtensor._refit import Refit
from reshard.dtensor._sessions import close_sessions
from reshard.dtensor._transfer import (
  Statistics,
  batch,
  mxn_cast,
  statistics,
  xdtensor_reshard,
  xferdtensor,
  xferdtensors,
)

__all__ = [
  "Refit",
  "Statistics",
  "batch",
  "close_sessions",
  "mxn_cast",
  "statistics",
  "xdtensor_reshard",
  "xferdtensor",
  "xferdtensors",
]
