# SPDX-License-Identifier: Apache-2.0
"""The rules that run.py flips: one wrong order, offset, stride or axis each."""

import dataclasses


@dataclasses.dataclass
class Rule:
  family: str
  name: str
  file: str
  find: str
  replace: str


RULES = []
