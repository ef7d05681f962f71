# SPDX-License-Identifier: Apache-2.0
"""The slices that only Megatron makes."""

import numpy as np

from oracle_tensor import Tensor, concatenate, pad_rows, round_up, row_shard


def interleave_qkv(q, k, v, num_groups):
  """Query group after query group: the group's query heads, its key head, its value head."""
  blocks = []
  for group in range(num_groups):
    blocks += [row_shard(part, group, num_groups) for part in (q, k, v)]
  return concatenate(blocks)


def interleave_gated_qkv(q, k, v, num_groups, head_dim):
  """The same where the checkpoint's q has a gate behind each head: a group's query heads, then
  their gates, its key head, its value head."""
  heads = q.data.reshape(-1, 2, head_dim, *q.data.shape[1:])
  blocks = []
  for group in np.split(np.arange(heads.shape[0]), num_groups):
    for half in range(2):
      blocks.append(Tensor(q.dtype, heads[group, half].reshape(-1, *q.data.shape[1:])))
    number = group[0] // len(group)
    blocks += [row_shard(part, number, num_groups) for part in (k, v)]
  return concatenate(blocks)


def gate_and_up(gate, up, index, count):
  """Both halves are cut, then put together: [gate shard; up shard]."""
  return concatenate([row_shard(gate, index, count), row_shard(up, index, count)])


def packed_shard(tensor, lengths, index, count):
  """Rows packed from parts of `lengths` rows: every part is cut on its own."""
  assert sum(lengths) == tensor.data.shape[0], (lengths, tensor.data.shape)
  parts = np.split(tensor.data, np.cumsum(lengths)[:-1])
  return concatenate([row_shard(Tensor(tensor.dtype, part), index, count) for part in parts])


def delta_in_proj(qkvz, ba, sizes, index, count):
  """[q; k; v; z; b; a], each cut over its heads. The checkpoint packs by key head: q, k, then the
  key head's share of v and z; and b and a the same way."""
  key_heads, value_heads, key_dim, value_dim = sizes
  share = value_heads // key_heads
  groups = qkvz.data.reshape(key_heads, 2 * key_dim + 2 * share * value_dim, -1)
  ends = np.cumsum([key_dim, key_dim, share * value_dim])
  parts = np.split(groups, ends, axis=1)
  parts += np.split(ba.data.reshape(key_heads, 2 * share, -1), 2, axis=1)
  whole = [Tensor(qkvz.dtype, part.reshape(-1, part.shape[-1])) for part in parts]
  return concatenate([row_shard(part, index, count) for part in whole])


def vocab_shard(table, sizes, tp):
  """A run of the vocabulary, padded so that every rank's run is equally long."""
  table = pad_rows(table, round_up(table.data.shape[0], sizes.vocab_multiple * sizes.tp))
  return row_shard(table, tp, sizes.tp)
