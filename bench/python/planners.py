# SPDX-License-Identifier: Apache-2.0
"""Planning for one receiving rank: reshard, Mooncake's planner and ModelExpress'.

    python bench/python/planners.py [MODEL] [RANKS] [ROUNDS]

RANKS trainer ranks (FSDP: rows over all) to RANKS engine ranks (tensor-parallel over 8, replicated),
on disjoint ranks, unfused tensors: a pair that all three can express. The planners take turns; each is
given its own description of both sides, made outside the clock, and must plan the same bytes. Needs
mooncake-transfer-engine-non-cuda and modelexpress; one that cannot be imported is left out, and said.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import reshard

TP = 8
_COLUMNS = ["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"]
_ROWS = ["o_proj", "down_proj"]


def sides(model: reshard.Model, ranks: int) -> tuple[reshard.Layout, reshard.Layout]:
  """The trainer's layout, and the engine's."""

  def text(rules: list[tuple[str, list[str]]], shape: list[int], first: int) -> str:
    return json.dumps(
      {
        "meshes": [{"name": "mesh", "shape": shape, "first": first}],
        "rules": [{"match": match, "placements": placements} for match, placements in rules],
      }
    )

  trainer = text([("*", ["S(0)"])], [ranks], 0)
  cut = [(f"*.{name}.weight", ["R", "S(0)"]) for name in _COLUMNS]
  cut += [(f"*.{name}.weight", ["R", "S(1)"]) for name in _ROWS]
  cut += [(name, ["R", "S(0)"]) for name in ("lm_head.weight", "model.embed_tokens.weight")]
  engine = text([*cut, ("*", ["R", "R"])], [ranks // TP, TP], ranks)
  of: dict[str, Any] = {"transformers": 4} if model.config is not None else {}
  return reshard.dtensor_layout(trainer, model, **of), reshard.dtensor_layout(engine, model, **of)


def boxes(layout: reshard.Layout, rank: int) -> list[tuple[str, Any]]:
  """(tensor, box) of everything that a rank holds."""
  return [(f.tensor, f.box) for local in layout.local(rank) for f in local.fragments]


def element_bytes(tensor: reshard.CanonicalTensor) -> int:
  return tensor.bytes // math.prod(tensor.shape)


Plan = Callable[[], int]  # plans, and returns the bytes that the rank receives


def by_reshard(source: reshard.Layout, target: reshard.Layout, rank: int) -> Plan:
  return lambda: reshard.plan(source, target).rank(rank).bytes_received


def by_mooncake(source: reshard.Layout, target: reshard.Layout, rank: int) -> Plan:
  """Its plan of one participant of the target, from both placements."""
  from mooncake.reshard import weight

  trainer = _placement(weight, source, {r: (0, r) for r in source.ranks}, (1, len(source.ranks)))
  first = min(target.ranks)
  at = {r: divmod(r - first, TP) for r in target.ranks}
  engine = _placement(weight, target, at, (len(target.ranks) // TP, TP))
  return lambda: weight.plan_placement_transfer_to_local_target(trainer, engine, f"rank{rank:06}").total_bytes


def _placement(weight: Any, layout: reshard.Layout, at: dict[int, tuple[int, int]], sizes: tuple[int, int]) -> Any:
  model = {t.name: t for t in layout.model.tensors}
  fragments, dims = [], {name: set[int]() for name in model}
  for rank, (dp, tp) in at.items():
    for name, box in boxes(layout, rank):
      shape = tuple(end - begin for begin, end in box)
      dims[name] |= {d for d, n in enumerate(model[name].shape) if shape[d] != n}
      count = element_bytes(model[name]) * math.prod(shape)
      begin = tuple(b for b, _ in box)
      fragments.append(weight.PlacementFragment(name, begin, shape, count, weight.ParallelRank(dp=dp, tp=tp)))
  tensors = []
  for name, tensor in model.items():
    axes = [weight.SplitAxis("tp", d) for d in sorted(dims[name])] or [weight.ReplicatedAxis("tp")]
    axes.append(weight.ReplicatedAxis("dp"))
    cut = tuple(sorted(dims[name]))
    shape, dtype, size = tuple(tensor.shape), str(tensor.dtype), element_bytes(tensor)
    tensors.append(weight.TensorDescriptor(name, shape, dtype, size, cut, "plain", tuple(axes)))
  ranks = tuple(
    weight.TopologyParticipant(f"rank{rank:06}", weight.ParallelRank(dp=dp, tp=tp)) for rank, (dp, tp) in at.items()
  )
  topology = weight.ParallelTopology(tp_size=sizes[1], pp_size=1, ep_size=1, dp_size=sizes[0], participants=ranks)
  return weight.WeightPlacementManifest.from_fragments(
    resource_id="model",
    revision="1",
    weight_generation=1,
    placement_set_id=layout.name,
    topology=topology,
    tensors=tensors,
    fragments=fragments,
  )


def by_modelexpress(source: reshard.Layout, target: reshard.Layout, rank: int) -> Plan:
  """Its plan of one receiver, from the copies that its engine's loader would have made."""
  from modelexpress.refit.reshard.slice_plan import Shard
  from modelexpress.refit.reshard.transfer_plan import SourceInfo, plan_transfer
  from modelexpress.refit.reshard.types import CaptureResult, RecordedCopy

  shards: dict[str, list[Any]] = {}
  for sender in source.ranks:
    for name, box in boxes(source, sender):
      begin = tuple(b for b, _ in box)
      shape = tuple(e - b for b, e in box)
      size = element_bytes(source.model.tensors[name])
      shards.setdefault(name, []).append(Shard(begin, shape, f"rank{sender}", 0, size))
  sources = {
    t.name: SourceInfo(tuple(t.shape), str(t.dtype), element_bytes(t), shards[t.name]) for t in source.model.tensors
  }
  copies = []
  for local in target.local(rank):
    for f in local.fragments:
      steps = tuple(("narrow", (d, b, e - b), ()) for d, (b, e) in enumerate(f.box))
      shape = tuple(e - b for b, e in f.box)
      dtype = str(target.model.tensors[f.tensor].dtype)
      copies.append(RecordedCopy(f.tensor, steps, local.name, f.offset, shape, tuple(f.strides), dtype))

  def run() -> int:
    # One descriptor for each run of bytes, as reshard's copies are: nothing is received that is not needed.
    plan = plan_transfer(CaptureResult(copies), sources, max_segments_per_copy=1 << 30)
    assert not plan.fallback, plan.fallback[:3]
    return int(plan.bytes_planned())

  return run


def main() -> None:
  name = sys.argv[1] if len(sys.argv) > 1 else "llama-3.1-8b"
  ranks = int(sys.argv[2]) if len(sys.argv) > 2 else 64
  rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 5
  source, target = sides(reshard.open_model(name), ranks)
  rank = max(target.ranks)
  ways: dict[str, Plan] = {}
  for label, make in (("reshard", by_reshard), ("mooncake.reshard", by_mooncake), ("modelexpress", by_modelexpress)):
    try:
      ways[label] = make(source, target, rank)
    except ImportError as error:
      print(f"{label}: left out ({error})")
  planned: dict[str, int] = {}
  seconds: dict[str, list[float]] = {label: [] for label in ways}
  for _ in range(rounds):
    for label, plan in ways.items():
      begin = time.perf_counter()
      planned[label] = plan()
      seconds[label].append(time.perf_counter() - begin)
  assert len(set(planned.values())) == 1, planned
  print(f"{name}, {ranks} to {ranks} ranks, {planned['reshard'] / 1e6:.0f} MB to rank {rank}; {rounds} rounds")
  for label, times in seconds.items():
    print(f"  {label:18}{min(times) * 1e3:12.2f} ms least{statistics.median(times) * 1e3:12.2f} ms median")


if __name__ == "__main__":
  main()
