# SPDX-License-Identifier: Apache-2.0
"""The judge of layouts: what every rank must hold, from plain slicing of whole arrays.

It shares no idea with the program it judges: no fragments, no plans, no boxes. A rule here is the
framework's own rule, written as the slice a reader would write by hand.
"""

import oracle_megatron
import oracle_vllm

_WORDS = {
  "dtype",
  "expert_map",
  "experts",
  "gamma",
  "layout",
  "mamba_names",
  "mla_down",
  "mtp_names",
  "norms",
  "order",
  "placement",
  "prefix",
  "w13",
}


def parse(layout):
  """(module, sizes) of a layout string such as "megatron:tp=2,pp=2"."""
  family, _, text = layout.partition(":")
  pairs = [item.split("=", 1) for item in text.split(",")] if text else []
  keys = {key: value if key in _WORDS else int(value) for key, value in pairs}
  if family == "megatron":
    return oracle_megatron, oracle_megatron.MegatronSizes(**keys)
  if family == "vllm":
    return oracle_vllm, oracle_vllm.VllmSizes(**keys)
  raise ValueError(f"no oracle for the layout {layout}")


def expected_ranks(model, layout):
  """What each rank holds under `layout`: one dict of name -> Tensor per rank, in rank order."""
  family, sizes = parse(layout)
  return [family.rank_tensors(model, sizes, rank) for rank in range(sizes.world())]
