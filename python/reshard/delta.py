# SPDX-License-Identifier: Apache-2.0
"""Deltas between two versions of a checkpoint, as files that apply to the earlier one.

    reshard.delta.make("step-100", "step-101", "101.delta")
    reshard.delta.apply("step-100", "101.delta", "restored")

docs/deltas.md says what they contain. They are exact: every file of the result is that of the later
checkpoint, byte for byte.
"""

from reshard._core import ApplyDeltasReport, DeltaChange, DeltaReport
from reshard._core import apply_deltas as apply
from reshard._core import inspect_delta as inspect
from reshard._core import make_delta as make

__all__ = ["ApplyDeltasReport", "DeltaChange", "DeltaReport", "apply", "inspect", "make"]
