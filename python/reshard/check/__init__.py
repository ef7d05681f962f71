# SPDX-License-Identifier: Apache-2.0
"""Whether an engine holds what a fresh load of the same values holds: everything that its kernels read. docs/check.md."""

from reshard.check._fresh import Fresh, check
from reshard.check._report import Difference, DifferenceError, Report
from reshard.check._rules import Rules

__all__ = ["Difference", "DifferenceError", "Fresh", "Report", "Rules", "check"]
