# SPDX-License-Identifier: Apache-2.0
"""Teaches what the modules of transformers hold, and what torch's fully_shard leaves of them on a rank."""

import functools
import json
import pathlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import transformers

from reshard import _core
from reshard.learn.fitting.evidence import Sight, skeleton
from reshard.learn.fitting.fit import Seen
from reshard.learn.learner import Learned, NoCard, Row, Sizes
from reshard.learn.models.configs import aliases_of, classes, defaults_of, numbers_of, tied_names
from reshard.tracing._text import part_text, read_part
from reshard.tracing._types import Part
from reshard.tracing.transformers import build_and_load, trace_transformers

__all__ = [
  "DTYPE", "FRAMEWORK", "RELEASE", "SEEN_AT", "aliases_of", "classes", "defaults_of", "finish", "layout_of", "rows", "sight",
  "tied_names",
]  # fmt: skip

FRAMEWORK, RELEASE = "transformers", transformers.__version__
_AXES = [{"name": "shard", "size": 1}, {"name": "replicate", "size": 1}]
_KEYS = [{"name": "tp"}, {"name": "transformers", "default": 5}]
_REQUIRE = [
  {"that": "tp == 1", "says": "tp must be 1: the card knows no plan of tensor parallelism"},
  {"that": "transformers == 5", "says": "transformers must be 5: the card was learned from it"},
]
#: A trainer may keep weights in F32: the notation says so.
DTYPE = "model"
#: Rules are fitted to what tensor parallel ranks hold. Of a module, each holds the whole.
SEEN_AT: tuple[Sizes, ...] = ({}, {"tp": 2})
_CUT = {"dim": 0, "axes": ["shard"], "rule": "ceil"}


def rows(card: Mapping[str, Any]) -> list[Row]:
  """Whole modules, and shards of them where ranks do not divide the rows."""
  whole = [Row(model, {"shard": 1}, model < 2) for model in (0, 1, 2)]
  return [*whole, Row(0, {"shard": 3}, False), Row(2, {"shard": 3, "replicate": 2}, False, (0, 2, 4))]


def finish(learned: Learned, found: Mapping[str, Sequence[Seen]]) -> dict[str, Any]:
  """Has the rules of parameters cut their rows (fully_shard leaves buffers whole); returns the axes, the keys and what
  must hold."""
  buffers = _buffers(learned.folders[0])
  for kind, rule in learned.rules:
    if skeleton(kind) in buffers:
      continue
    rule["cuts"] = [dict(_CUT)]
    if rule.get("with"):
      rule["together"] = True
  return {"axes": _AXES, "keys": _KEYS, "require": _REQUIRE}


def sight(
  folder: pathlib.Path,
  sizes: Sizes,
  model: int,
  ranks: Sequence[int] | None = None,
) -> Sight:
  one = Sight.of(_whole(folder), sizes, numbers_of(folder), model)
  alike = {rank: one.ranks[0] for rank in range(sizes.get("tp", 1))}
  return Sight(one.sizes, one.shapes, alike, one.omitted, one.numbers, model)


def layout_of(
  folder: pathlib.Path, sizes: Sizes, ranks: Sequence[int] | None = None
) -> _core.Layout:
  """What fully_shard leaves on ranks (None: on all) of a mesh (replicate, shard)."""
  shard, replicate = sizes.get("shard", 1), sizes.get("replicate", 1)
  if shard * replicate == 1:
    return _whole(folder)
  return _sharded(folder, replicate, shard, tuple(range(shard * replicate) if ranks is None else ranks))


# Six models are looked at several times: three, and three with other flags.
@functools.lru_cache(maxsize=6)
def _whole(folder: pathlib.Path) -> _core.Layout:
  return trace_transformers(folder).layout


def _module(folder: pathlib.Path) -> torch.nn.Module:
  """Of a checkpoint's class, without memory."""
  build, _ = build_and_load(transformers.AutoConfig.from_pretrained(folder))
  with torch.device("meta"):
    module: torch.nn.Module = build(0)
  return module


def _buffers(folder: pathlib.Path) -> frozenset[str]:
  return frozenset(skeleton(name) for name, _ in _module(folder).named_buffers())


# -- what fully_shard does, on ranks of torch's fake process group


@contextmanager
def _as_rank(rank: int, world: int) -> Iterator[None]:
  from torch.testing._internal.distributed.fake_pg import FakeStore

  torch.distributed.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
  try:
    yield
  finally:
    torch.distributed.destroy_process_group()


def _rows_of(folder: pathlib.Path, rank: int, replicate: int, shard: int) -> dict[str, tuple[int, int]]:
  """By parameter: the first row that a rank holds, and the one after its last."""
  from torch.distributed.device_mesh import init_device_mesh
  from torch.distributed.fsdp import fully_shard
  from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

  module = _module(folder)
  with _as_rank(rank, replicate * shard):
    mesh = init_device_mesh("cpu", (replicate, shard), mesh_dim_names=("replicate", "shard"))
    fully_shard(module, mesh=mesh)
    found = {}
    for name, parameter in module.named_parameters():
      held: Any = parameter
      shape, offset = compute_local_shape_and_global_offset(held.shape, mesh, held.placements)
      if tuple(shape[1:]) != tuple(held.shape[1:]) or tuple(held.to_local().shape) != tuple(shape):
        raise NoCard(f"'{name}': fully_shard cuts more than its rows")
      found[name] = (offset[0], offset[0] + shape[0])
  return found


@functools.lru_cache(maxsize=6)
def _sharded(
  folder: pathlib.Path, replicate: int, shard: int, ranks: tuple[int, ...]
) -> _core.Layout:
  with tempfile.TemporaryDirectory() as work:
    path = pathlib.Path(work, "layout.json")
    _whole(folder).save(path)
    said = json.loads(path.read_text(encoding="utf-8"))
  held = []
  for rank in ranks:
    rows = _rows_of(folder, rank, replicate, shard)
    for entry in said["local_tensors"]:
      cut = _clipped(entry, *rows[entry["name"]]) if entry["name"] in rows else entry
      held.append(cut | {"ranks": str(rank)})
  said |= {"local_tensors": held, "ranks": ",".join(map(str, ranks))}
  return _core.explicit_layout(json.dumps(said), _whole(folder).model)


def _clipped(entry: Mapping[str, Any], begin: int, end: int) -> dict[str, Any]:
  """A local tensor's rows [begin, end)."""
  shape = [max(0, end - begin), *entry["shape"][1:]]
  parts = []
  for text in entry["parts"]:
    part = read_part(text)
    dims = tuple(d for d in part.dims if d is not None) or tuple(
      range(len(shape) - len(part.begin), len(shape))
    )
    lo, hi, at = list(part.begin), list(part.end), list(part.at or (0,) * len(shape))
    along = dims.index(0) if 0 in dims else None
    rows = 1 if along is None else hi[along] - lo[along]
    first, last = max(at[0], begin), min(at[0] + rows, end)
    if first >= last:
      continue
    if along is not None:
      lo[along], hi[along] = lo[along] + first - at[0], lo[along] + last - at[0]
    at[0] = first - begin
    cut = Part(part.weight, tuple(lo), tuple(hi), tuple(at), dims, part.steps)
    parts.append(part_text(cut, len(shape)))
  return {**entry, "shape": shape, "parts": parts}
