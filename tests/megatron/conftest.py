# SPDX-License-Identifier: Apache-2.0
"""Lets these tests, and the processes that they start, import the helpers of python/tests."""

import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).parents[2] / "python/tests"))
