# SPDX-License-Identifier: Apache-2.0
"""One tensor of one architecture, from one layout to one other, by hand: what reshard replaces."""

import torch


def refit_qkv(trainer, heads, groups, dim, engine_tp):
  """Megatron's linear_qkv shards (of all tensor-parallel ranks, in order) -> vLLM's qkv_proj shards."""
  whole = torch.cat(trainer)  # every shard is gathered on one rank first
  rows = whole.view(groups, heads // groups + 2, dim, -1)  # a group: its q heads, one k, one v
  q, k, v = rows.split([heads // groups, 1, 1], dim=1)
  q, k, v = (x.reshape(-1, whole.shape[-1]) for x in (q, k, v))
  return [torch.cat([x.chunk(engine_tp)[rank] for x in (q, k, v)]) for rank in range(engine_tp)]
