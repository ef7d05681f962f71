# SPDX-License-Identifier: Apache-2.0
"""Unquantised models: names, shapes, dtypes and bytes of every parameter on every rank."""

import pytest
from models import MODELS

_SIZES = (dict(), dict(tp=2), dict(tp=4), dict(tp=2, pp=2), dict(pp=3))
_EXPERT_SIZES = (
  dict(tp=2, dp=2),
  dict(tp=4, ep=True),
  dict(tp=2, dp=2, ep=True),
  dict(tp=2, pp=2, ep=True),
)
_EXPERTS = [name for name, config in MODELS.items() if any("experts" in key for key in config)]
# float32 unless the device has a kernel for BF16 routers.
_ROUTERS = {"nemotron": r"\.gate\.weight$"}

_ROWS = [(name, sizes) for name in MODELS for sizes in _SIZES] + [
  (name, sizes) for name in _EXPERTS for sizes in _EXPERT_SIZES
]


def _named(row):
  return "-".join([row[0], *(f"{key}{value}" for key, value in row[1].items())])


@pytest.mark.parametrize("name, sizes", _ROWS, ids=map(_named, _ROWS))
def test_every_rank_holds_what_vllm_loads(name, sizes, checkpoint, compare):
  compare(checkpoint(name), sizes, by_device=_ROUTERS.get(name))


def test_drafts_for_multi_token_prediction():
  pytest.skip("vLLM loads them as models of their own beside the main one: not compared")
