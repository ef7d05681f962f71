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


RULES = [
  Rule(
    "vllm", "KV heads repeat tp / heads times in a row", "reshard/model/vllm.cc",
    "kv_ = b_.add_cut(cut_over(0, CutRule::spread, c_.head_dim));",
    "kv_ = b_.add_cut(cut_over(0, CutRule::spread, 1));",
  ),
]  # fmt: skip
