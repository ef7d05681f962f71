# SPDX-License-Identifier: Apache-2.0
"""Which layers a Megatron pipeline stage has: even, uneven, virtual and explicit.

Sources: megatron-core 0.16.1, transformer_block.py get_num_layers_to_build, transformer_layer.py
get_transformer_layer_offset, pipeline_parallel_layer_layout.py.
"""

import re
from dataclasses import dataclass, field


@dataclass
class Chunk:
  """What one virtual stage builds; layers and MTP modules by their global numbers."""

  layers: list = field(default_factory=list)
  mtp: list = field(default_factory=list)
  embedding: bool = False
  loss: bool = False


def stage_layers(num_layers, pp, first=None, last=None):
  """The layers (numbered from 0 over the whole model) of each pipeline stage."""
  counts = _stage_counts(num_layers, pp, first, last)
  stages, start = [], 0
  for count in counts:
    stages.append(list(range(start, start + count)))
    start += count
  return stages


def _stage_counts(num_layers, pp, first, last):
  counts = [None] * pp
  if first is not None:
    counts[0] = first
  if last is not None:
    counts[-1] = last
  open_stages = counts.count(None)
  left = num_layers - sum(count for count in counts if count is not None)
  assert left >= 0 and (left == 0 if open_stages == 0 else left % open_stages == 0), (
    "stages do not divide"
  )
  return [left // open_stages if count is None else count for count in counts]


def virtual_stages(sizes, num_layers, num_mtp):
  """[pp][vpp] of Chunk. Virtual stage c * pp + s is chunk c of stage s, layers in that order."""
  if sizes.layout:
    return _explicit(sizes, num_layers, num_mtp)
  first = int(sizes.account_embedding)
  last = int(sizes.account_loss)
  counts = _stage_counts(num_layers + first + last, sizes.pp, sizes.first, sizes.last)
  assert all(count % sizes.vpp == 0 for count in counts), "chunks do not divide"
  chunks, start = [[None] * sizes.vpp for _ in range(sizes.pp)], 0
  for chunk in range(sizes.vpp):
    for stage in range(sizes.pp):
      is_first = (stage, chunk) == (0, 0)
      is_last = (stage, chunk) == (sizes.pp - 1, sizes.vpp - 1)
      count = counts[stage] // sizes.vpp - first * is_first - last * is_last
      layers = list(range(start, start + count))
      mtp = list(range(num_mtp)) if is_last else []
      chunks[stage][chunk] = Chunk(layers, mtp, is_first, is_last)
      start += count
  return chunks


def unroll(layout):
  """The layout without repetitions: (tt|)*2 is tt|tt|, t*3 is ttt."""
  for pattern in (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)"):
    layout = re.sub(pattern, lambda found: found.group(1) * int(found.group(2)), layout)
  return layout


def _explicit(sizes, num_layers, num_mtp):
  stages = unroll(sizes.layout).split("|")
  assert len(stages) % sizes.pp == 0, "virtual stages do not divide by pp"
  vpp = len(stages) // sizes.pp
  chunks, layer, module = [[None] * vpp for _ in range(sizes.pp)], 0, 0
  for place, letters in enumerate(stages):
    decoders, modules = letters.count("t"), letters.count("m")
    chunks[place % sizes.pp][place // sizes.pp] = Chunk(
      list(range(layer, layer + decoders)),
      list(range(module, module + modules)),
      "E" in letters,
      "L" in letters,
    )
    layer, module = layer + decoders, module + modules
  assert (layer, module) == (num_layers, num_mtp), "the layout has other layers than the model"
  return chunks
