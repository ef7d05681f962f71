# SPDX-License-Identifier: Apache-2.0
"""What ranks say of a pair of models, and the two layouts that it makes."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import re
import weakref
from collections.abc import Sequence
from typing import Any

import torch

import reshard
from reshard.live._modules import held_by
from reshard.live._parts import Held
from reshard.live._ranks import FullTensors, Ranks
from reshard.live._watch import Watch, seen, watched
from reshard.megatron._transforms import check_known, quantised

_HEAD = "output_layer.weight"
_EMBEDDING = "embedding.word_embeddings.weight"
# Names of the factors of Megatron-Bridge's adapters: of modules that it wraps, and of torch's Linear, which it replaces.
_ADAPTER = re.compile(r"\.(?:adapter\..+|linear_(?:in|out)\.weight)$")

_numbers = itertools.count()
_serials: weakref.WeakKeyDictionary[torch.nn.Module, int] = weakref.WeakKeyDictionary()


def modules_of(model: Any) -> list[Any]:
  """The chunks of a rank's stage; [] for None."""
  if model is None:
    return []
  return list(model) if isinstance(model, list | tuple) else [model]


def digest_of(source: Any, target: Any, more: Sequence[Any]) -> tuple[str, bool]:
  """Changes with any module, name, shape or dtype of this rank's models, and with `more`.

  Not with the dtypes of the target's buffers, which take those of the source's. Also returns whether all
  tensors are plain memory that a session can use: of the host, or of one GPU.
  """
  said: list[Any] = [more]
  plain = True
  devices: set[torch.device] = set()
  for model, follows in ((source, False), (target, True)):
    modules = modules_of(model)
    said.append([_serial(module) for module in modules])
    if modules:
      watch = watched(modules)
      said.append(_digest_of(watch, follows))
      plain = plain and watch.plain
      devices |= watch.devices
  return _hashed(said), plain and len(devices) <= 1


_digests: weakref.WeakKeyDictionary[Watch, dict[bool, tuple[int, str]]] = weakref.WeakKeyDictionary()


def _digest_of(watch: Watch, follows: bool) -> str:
  """Of names, shapes and dtypes; `follows`: not of the dtypes of buffers."""
  known = _digests.setdefault(watch, {})
  if known.get(follows, (0, ""))[0] != watch.version:
    follow = {name for name, _, _ in watch.buffers} if follows else set()
    said = [(n, tuple(t.shape), None if n in follow else t.dtype) for n, t in watch.tensors.items()]
    known[follows] = watch.version, _hashed(said)
  return known[follows][1]


def _hashed(said: Any) -> str:
  return hashlib.blake2b(repr(said).encode(), digest_size=16).hexdigest()


def _serial(module: Any) -> int:
  if not isinstance(module, torch.nn.Module):
    raise reshard.InvalidArgumentError(f"a {type(module).__name__} is no module of torch")
  return _serials.setdefault(module, next(_numbers))


def described(source: Any, target: Any) -> dict[str, Any]:
  """What this rank holds of both, as JSON. @pre digest_of() has looked at them"""
  modules = modules_of(target)
  check_known(modules)
  held = [[h.pack() for h in held_by(modules_of(m))] if modules_of(m) else None for m in (source, target)]
  known = quantised(modules)
  if held[1] is not None and known is not None:
    held[1] += [h.pack() for h in known.held]
  buffers = [name for name, _, _ in seen(modules).buffers] if modules else []
  return {"source": held[0], "target": held[1], "buffers": buffers}


@dataclasses.dataclass(frozen=True)
class Pair:
  """Both layouts of a pair of models, in Megatron's full tensors, over the ranks of a group."""

  source: reshard.Layout
  target: reshard.Layout
  source_held: Ranks
  target_held: Ranks
  ignored: tuple[str, ...]  # full tensors that only the source has

  @staticmethod
  def of(said: Sequence[dict[str, Any]]) -> Pair | None:
    """From what all ranks said, by rank; None if no rank has a target.

    Raises InvalidArgumentError if no rank has a source, or for a tensor whose full shape differs between
    both; NotFoundError for a tensor that the source lacks; UnsupportedError for an adapter that the target lacks.
    """
    sources = _unpacked(said, "source")
    targets = _unpacked(said, "target")
    if not targets:
      return None
    if not sources:
      raise reshard.InvalidArgumentError("no rank has a source model")
    dtypes: dict[str, str] = {}
    for held in itertools.chain.from_iterable(sources.values()):
      dtypes.setdefault(held.whole, held.dtype)
    for rank, here in targets.items():
      buffers = set(said[rank]["buffers"])
      targets[rank] = [_fitted(held, held.name in buffers, dtypes) for held in here]
    wanted = {held.whole for held in itertools.chain.from_iterable(targets.values())}
    ignored = tuple(name for name in dtypes if name not in wanted)
    for name in ignored:
      if _ADAPTER.search(name):
        raise reshard.UnsupportedError(
          f"'{name}' of the source belongs to an adapter that the target does not have: merge it first (docs/lora.md)"
        )
    source = FullTensors(None).layout("source", sources, "")
    target = FullTensors(source.model).layout("target", targets, "the source model has no such tensor")
    return Pair(source, target, sources, targets, ignored)

  def buffer_dtypes(self, rank: int) -> dict[str, str]:
    """{local name: dtype} of all tensors of a rank's target."""
    return {held.name: held.dtype for held in self.target_held.get(rank, [])}


def _unpacked(said: Sequence[dict[str, Any]], side: str) -> Ranks:
  return {
    rank: [Held.unpack(packed) for packed in of_rank[side]]
    for rank, of_rank in enumerate(said)
    if of_rank[side] is not None
  }


def _fitted(held: Held, is_buffer: bool, dtypes: dict[str, str]) -> Held:
  whole = held.whole
  if whole not in dtypes and whole.endswith(_HEAD):  # the source ties it
    tied = whole[: -len(_HEAD)] + _EMBEDDING
    whole = tied if tied in dtypes else whole
  dtype = dtypes.get(whole, held.dtype) if is_buffer else held.dtype
  return dataclasses.replace(held, whole=whole, dtype=dtype)
