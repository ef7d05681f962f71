# SPDX-License-Identifier: Apache-2.0
"""The layout of any engine that can load a checkpoint, learned from its own loader.

`traced(build, load, weights)` builds a rank's module, has the engine load a checkpoint into it that
holds no values, and sees what ends up where, in one of two ways, `recording` or `numbers`. What was
learned is then proved: values go through the loader, and every byte must be where the layout says.
docs/tracing.md says how they work and what they cannot follow.

Needs torch and numpy. `import reshard` does not import this package; `reshard.traced` does.
"""

import dataclasses
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

import reshard
from reshard import _core
from reshard._errors import add_note
from reshard._layout_cache import CachedLayout, CacheEntry
from reshard.tracing import _quantised, _text, _weights
from reshard.tracing._numbers import trace_numbers
from reshard.tracing._proof import Proof, probe, prove as _prove
from reshard.tracing._recording import trace_recording
from reshard.tracing._types import RankTrace, TracingError, Weight
from reshard.tracing._weights import stored_tensors

__all__ = ["Proof", "Traced", "TracingError", "probe", "stored_tensors", "trace", "traced"]

_log = logging.getLogger(__name__)

Build = Callable[[int], Any]
Load = Callable[[torch.nn.Module, Iterator[tuple[str, torch.Tensor]]], Any]
_METHODS = ("auto", "numbers", "recording")


@dataclasses.dataclass(frozen=True)
class Traced:
  """What a trace found.

  layout     the layout, over `layout.model`. Of a quantised engine it is quantised: plans towards it
             take plain values, or data and scales as they are
  values     the layout of plain values, which `layout` quantises; else `layout`
  files      the layout over the tensors that the loader was given; for a quantised engine, data and
             scales as files hold them; else `layout`
  untouched  {rank: {parameter: elements that the loader did not write}}; parameters of which it
             wrote nothing are not in the layout, of others the rest is padding
  unused     names of weights that no rank holds
  method     "numbers" or "recording"; "cache" if it was read from disk (nothing is then known of
             `untouched` and `constants`)
  proof      how many local tensors were compared with what the loader does to values
  constants  {rank: {buffer: operation}}: what the loader writes into buffers that is no weight's,
             and that the layout therefore leaves out
  """

  layout: _core.Layout
  values: _core.Layout
  files: _core.Layout
  untouched: dict[int, dict[str, int]]
  unused: list[str]
  method: str
  proof: Proof
  constants: dict[int, dict[str, str]]

  def __repr__(self) -> str:
    return (
      f"<Traced {self.layout!r} by {self.method}, {self.proof}, {len(self.unused)} weights unused>"
    )


def traced(
  build: Build,
  load: Load,
  weights: Any,
  *,
  ranks: int | Iterable[int] = 1,
  method: str = "auto",
  prove: bool | str = True,
  omit: bool = True,
  name: str = "traced",
  key: Mapping[str, Any] | None = None,
  check: bool | None = None,
) -> _core.Layout:
  """The layout that an engine's own loader produces.

  build    build(rank) -> the rank's torch.nn.Module with its parameters (values do not matter), or
           a context manager that gives it and keeps the state that the load needs. For recording
           it is called in a mode in which new floating-point tensors are on torch's meta device
  load     load(module, iterator of (name, tensor)): the engine's load_weights
  weights  what the checkpoint holds: a reshard.Model, the path of a checkpoint,
           {name: (shape, dtype)} or {name: tensor}, or for a quantised engine a layout such as
           reshard.layout("hf:quant=fp8_block", model). For a quantised checkpoint or layout the
           result is quantised, over the model's plain values
  ranks    the ranks of the layout: a number of them, or their numbers
  method   "recording" follows operations on tensors without memory; "numbers" loads 64-bit element
           numbers (8 bytes per element of a rank, in memory); "auto" records, and counts where that
           cannot follow
  prove    load values twice with the engine's loader, and compare every byte with what the layout
           says. Of a rank whose parameters and weights have more than 1 GiB together, the first and
           the last parameter of each kind are proved (names that differ in numbers only are one
           kind). "whole": all of them. False: the layout is what was learned, and may be wrong if
           the loader treats values otherwise than it treats tensors without
  omit     `ranks` are all of the engine's, so a weight that none of them holds is one that the
           engine drops. False: the layout is of some ranks, and says nothing of other weights
  name     of the layout, for people
  key      what the result depends on beside `weights`, `ranks` and `name`: the engine's config,
           version and parallel sizes (anything JSON takes). With it the layout is kept on disk, in
           $RESHARD_CACHE or ~/.cache/reshard (RESHARD_CACHE=off: nowhere); without it, never
  check    deprecated, and of no effect: layouts are proved

  Parameters that the loader does not write are not in the layout, nor are buffers into which it
  writes constants; messages of the logger "reshard.tracing" name them. Weights that no rank holds
  are omitted. trace() returns all of these.

  Raises TracingError, with the names of the tensor and the operation, for a loader that computes
  other values than those of the known maps, looks at values, depends on chance, or puts weights
  where no layout reaches; exceptions of `build` and `load` arrive whole.
  """
  found = trace(
    build, load, weights, ranks=ranks, method=method, prove=prove, omit=omit, name=name, key=key,
    check=check,
  )  # fmt: skip
  _log_what_is_left(found)
  if not prove:
    _log.warning("the layout '%s' is not proved", name)
  return found.layout


def _log_what_is_left(found: Traced) -> None:
  """Names what the layout leaves as it is: elements that nothing loads, buffers with constants."""
  for rank, names in found.untouched.items():
    shown = ", ".join(f"{n} ({count})" for n, count in list(names.items())[:8])
    if names:
      _log.info("rank %d: %d parameters have elements that nothing loads: %s%s", rank, len(names),
                shown, ", ..." if len(names) > 8 else "")  # fmt: skip
  for rank, constants in found.constants.items():
    if constants:
      shown = ", ".join(f"{n} ({how})" for n, how in list(constants.items())[:8])
      _log.warning("rank %d: the loader writes constants into buffers that the layout leaves out: %s", rank, shown)


def trace(
  build: Build,
  load: Load,
  weights: Any,
  *,
  ranks: int | Iterable[int] = 1,
  method: str = "auto",
  prove: bool | str = True,
  omit: bool = True,
  name: str = "traced",
  key: Mapping[str, Any] | None = None,
  check: bool | None = None,
) -> Traced:
  """traced(), with all that was found."""
  if method not in _METHODS:
    raise reshard.InvalidArgumentError(f"method {method!r} is none of {', '.join(_METHODS)}")
  if check is not None:
    warnings.warn("check= is deprecated: prove=", DeprecationWarning, stacklevel=2)
  if prove not in (True, False, "whole"):
    raise reshard.InvalidArgumentError(f"prove {prove!r} is none of True, False, 'whole'")
  model, tensors, stored = _weights.read(weights, name)
  all_ranks = list(range(ranks)) if isinstance(ranks, int) else sorted(set(ranks))
  entry = None if key is None else _entry([key, omit], tensors, all_ranks, name)
  kept = None if entry is None else entry.read()
  if entry is not None and kept is not None and Proof(kept.proved, kept.of).meets(prove):
    try:
      files = _core.explicit_layout(kept.text, model)
    except reshard.Error:
      _log.warning("%s is no layout of this model: traced anew", entry.path)
    else:
      return _found(kept.text, files, stored, {}, "cache", Proof(kept.proved, kept.of))
  used, traces = _trace_ranks(build, load, tensors, all_ranks, method)
  text = _text.layout_text(name, tensors, traces, omit)
  files = _core.explicit_layout(text, model)
  if prove:
    proof = _prove(files, build, load, prove == "whole")
  else:
    proof = Proof(0, sum(len(t.locals) for t in traces.values()))
  if entry is not None:
    entry.write(CachedLayout(text, proof.proved, proof.of))
  return _found(text, files, stored, traces, used, proof)


def _entry(
  key: Any, weights: Sequence[Weight], ranks: Sequence[int], name: str
) -> CacheEntry | None:
  tensors = [(w.name, w.shape, w.index_shape, str(w.dtype)) for w in weights]
  return CacheEntry.of(name, key, list(ranks), tensors)


def _found(
  text: str,
  files: _core.Layout,
  stored: _core.Layout | None,
  traces: Mapping[int, RankTrace],
  used: str,
  proof: Proof,
) -> Traced:
  values = files if stored is None else _quantised.values_of(text, stored)
  layout = files if stored is None else _quantised.compose(values, files, stored)
  untouched = {rank: t.untouched for rank, t in traces.items()}
  constants = {rank: t.constants for rank, t in traces.items()}
  return Traced(layout, values, files, untouched, _unused(files), used, proof, constants)


def _unused(layout: _core.Layout) -> list[str]:
  held = {f.tensor for rank in layout.ranks for t in layout.local(rank) for f in t.fragments}
  return [t.name for t in layout.tensors if t.name not in held]


def _trace_ranks(
  build: Build, load: Load, weights: list[Weight], ranks: Sequence[int], method: str
) -> tuple[str, dict[int, RankTrace]]:
  stopped: Exception | None = None
  if method != "numbers":
    try:
      return "recording", {rank: trace_recording(build, load, weights, rank) for rank in ranks}
    except Exception as error:  # of the loader too: torch's meta device cannot do everything
      if method == "recording" or (isinstance(error, TracingError) and error.final):
        raise
      stopped = error
      _log.info("recording stopped (%s): traced by numbers", error)
  try:
    return "numbers", {rank: trace_numbers(build, load, weights, rank) for rank in ranks}
  except Exception as error:
    if stopped is not None:
      add_note(error, f"tracing by recording stopped before: {stopped}")
    raise
