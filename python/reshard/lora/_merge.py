# SPDX-License-Identifier: Apache-2.0
"""Weights with LoRA adapters merged into them, rank by rank."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import reshard
from reshard import _manifest as manifest
from reshard._arguments import checked
from reshard._names import listed
from reshard.lora._config import as_dict, scale_of
from reshard.lora._names import adapters_in

if TYPE_CHECKING:
  import torch

__all__ = ["Merge"]


#: Elements that are merged at a time: in FP32, 256 MiB.
_BAND = 1 << 26


@dataclass(frozen=True)
class _Change:
  """What an adapter adds to one weight: scale * B A, transposed for embeddings and for Conv1D."""

  a: str  # names of the factors
  b: str
  scale: float
  transposed: bool


@dataclass(frozen=True)
class _Area:
  """A part of a local tensor that adapters change."""

  weight: str
  box: tuple[tuple[int, int], ...]
  offset: int
  strides: tuple[int, ...]

  def of(self, flat: torch.Tensor) -> torch.Tensor:
    """The part as a matrix. `flat`: the local tensor's elements."""
    return flat.as_strided(self.shape, self.strides, flat.storage_offset() + self.offset)

  @property
  def shape(self) -> list[int]:
    return [end - begin for begin, end in self.box]

  @property
  def numel(self) -> int:
    return math.prod(self.shape)

  def bands(self) -> Iterator[_Area]:
    """Its rows in bands of at most _BAND elements, but of one row at least."""
    (first, end), *columns = self.box
    rows = max(1, _BAND // max(1, math.prod(self.shape[1:])))
    for row in range(first, end, rows):
      box = ((row, min(end, row + rows)), *columns)
      yield replace(self, box=box, offset=self.offset + (row - first) * self.strides[0])


class Merge:
  """The weights of a model with its LoRA adapters merged in: W + scale * B A, computed in FP32 and rounded once.

      merge = reshard.lora.Merge(layout, tensors, {"default": module.peft_config["default"]}, group=group)
      with reshard.Session(group, source=merge.layout, source_tensors=merge.tensors, ...) as session:
        for version in range(1, steps + 1):
          train()
          merge.merge()
          session.refit(version)

  Each rank merges what it holds of the weights, in memory of its own: the trainer's tensors stay as they are. That
  costs this memory (`bytes`), all factors on every rank in FP32, and for each element of an adapted weight as many
  multiplications as the adapter has ranks. Collective over the ranks of the layout.

  layout   of the ranks, with the adapters' factors beside the weights, as `of_dtensors(dict(module.named_parameters()))`
           of a PEFT module gives it: "X.weight", "X.lora_A.default.weight", "X.lora_B.default.weight"
  tensors  this rank's, by the layout's names; tensors of torch. Borrowed, and read by merge()
  configs  {adapter: peft.LoraConfig, or the dict in its adapter_config.json}, of all adapters in the layout. Several
           are added, as PEFT adds active adapters
  rank     of this process in the layout
  group    of the layout's ranks, which must be those of the group. None: this rank holds all factors, whole
  timeout  seconds for each step in the group

  Raises UnsupportedError for adapters that are more than A and B (DoRA, biases, experts' parameters), and for weights
  that are no BF16, F16 or F32 (QLoRA); InvalidArgumentError for factors whose shapes are not the weight's.

  Attributes: `layout` and `tensors`, what to send instead: without factors. `bytes`: of this object's memory.
  """

  @checked
  def __init__(
    self,
    layout: reshard.Layout,
    tensors: Mapping[str, Any],
    configs: Mapping[str, Any],
    *,
    rank: int = 0,
    group: reshard.ProcessGroup | None = None,
    timeout: float = 60.0,
  ) -> None:
    if layout.quantised:
      raise reshard.UnsupportedError(f"{layout.name}: adapters are merged into plain values; this layout is quantised")
    self._given, self._rank, self._timeout = layout, rank, timeout
    self._changes = _changes_of(layout.model, configs)
    factors = {name for changes in self._changes.values() for c in changes for name in (c.a, c.b)}
    #: The model without factors, as `manifest.table_of()`.
    self.table = [t for t in manifest.table_of(layout.model) if t[0] not in factors]
    self.tensors: dict[str, Any] = {}
    self._merged: list[tuple[Any, torch.Tensor, list[_Area]]] = []
    self._stage(tensors, factors)
    self.bytes = sum(own.nbytes for _, own, _ in self._merged)
    self._version = 0
    self._factors, self._session = _fetched(layout, tensors, sorted(factors), rank, group, timeout)

  def _stage(self, tensors: Mapping[str, Any], factors: set[str]) -> None:
    import torch

    for local in self._given.local(self._rank):
      if local.fragments and all(f.tensor in factors for f in local.fragments):
        continue
      given = _local(tensors[local.name])
      areas = [
        _Area(f.tensor, tuple((int(b), int(e)) for b, e in f.box), f.offset, tuple(f.strides))
        for f in local.fragments
        if f.tensor in self._changes
      ]
      self.tensors[local.name] = tensors[local.name]
      if areas:
        _check_weight(local, given)
        own = self.tensors[local.name] = torch.empty_like(given)
        self._merged.append((given, own, areas))

  @functools.cached_property
  def layout(self) -> reshard.Layout:
    """Of all ranks, without factors."""
    descriptions = {r: manifest.describe(self._given, r, self.table) for r in self._given.ranks}
    return manifest.build(self._given.name, manifest.model_of(self.table), descriptions)

  def merge(self, stream: Any = None) -> None:
    """Merges the present values. Collective over the group.

    stream  of the GPU that has the tensors, after whose work they are merged; None: torch's current stream. A
            torch.cuda.Stream, or a stream's address
    """
    import torch

    if self._session is not None:
      self._version += 1
      self._session.refit(self._version, stream=stream)
    with torch.no_grad(), _exactly(), _on(stream):
      for given, own, areas in self._merged:
        if sum(area.numel for area in areas) < own.numel():
          own.copy_(given)
        source, target = given.reshape(-1), own.view(-1)
        for area in areas:
          for part in area.bands():
            value = part.of(source).to(torch.float32, copy=True)
            for change in self._changes[area.weight]:
              self._add(change, part.box, value)
            part.of(target).copy_(value)

  def _add(self, change: _Change, box: tuple[tuple[int, int], ...], value: torch.Tensor) -> None:
    """Adds an adapter's part to a weight's values in a box."""
    a, b = self._factors[change.a], self._factors[change.b]
    rows, cols = (slice(*bounds) for bounds in (reversed(box) if change.transposed else box))
    here = value.t() if change.transposed else value
    here.addmm_(b[rows].to(value), a[:, cols].to(value), alpha=change.scale)

  def close(self) -> None:
    """Ends the session in the group, which stays. Idempotent."""
    if self._session is not None:
      self._session.close()


@contextlib.contextmanager
def _exactly() -> Iterator[None]:
  """Products of FP32 in FP32, whatever a trainer has set."""
  import torch

  before = torch.get_float32_matmul_precision()
  torch.set_float32_matmul_precision("highest")
  try:
    with torch.autocast("cuda", enabled=False), torch.autocast("cpu", enabled=False):
      yield
  finally:
    torch.set_float32_matmul_precision(before)


def _on(stream: Any) -> contextlib.AbstractContextManager[Any]:
  """Makes this stream torch's current one."""
  import torch

  if stream is None:
    return contextlib.nullcontext()
  if isinstance(stream, int):
    stream = cast(Any, torch.cuda).ExternalStream(stream)
  return torch.cuda.stream(stream)


def _local(tensor: Any) -> Any:
  """A tensor of torch without its gradient; a DTensor's own memory."""
  if hasattr(tensor, "to_local"):
    tensor = tensor.to_local()
  return tensor.detach() if hasattr(tensor, "detach") else tensor


def _changes_of(model: reshard.Model, configs: Mapping[str, Any]) -> dict[str, list[_Change]]:
  """{weight: what is added to it}."""
  shapes = {t.name: tuple(t.shape) for t in model.tensors}
  adapters = adapters_in(shapes)
  if set(adapters) != set(configs):
    raise reshard.InvalidArgumentError(
      f"configs of the adapters {listed(sorted(configs)) or '(none)'}, but the layout has {listed(sorted(adapters)) or 'none'}"
    )
  changes: dict[str, list[_Change]] = {}
  for adapter in sorted(adapters):
    config = as_dict(configs[adapter])
    pairs: dict[tuple[str, bool], dict[str, str]] = {}
    for name, part in adapters[adapter].items():
      pairs.setdefault((part.module, part.kind.startswith("embedding")), {})[part.kind[-1]] = name
    for (module, embedding), names in sorted(pairs.items()):
      if embedding and not any(name.endswith("lm_head.weight") for name in shapes):
        raise reshard.UnsupportedError(
          f"'{module}' may be tied to the LM head, which is not in the layout and which the adapter does not change"
        )
      changes.setdefault(f"{module}.weight", []).append(_change(shapes, module, names, embedding, config))
  return changes


def _change(
  shapes: Mapping[str, tuple[int, ...]], module: str, names: Mapping[str, str], embedding: bool, config: dict[str, Any]
) -> _Change:
  weight = f"{module}.weight"
  missing = [f"lora_{kind} of '{module}'" for kind in "AB" if kind not in names]
  if weight not in shapes:
    missing.append(f"the weight '{weight}'")
  if missing:
    raise reshard.InvalidArgumentError(f"{missing[0]} is not in the layout")
  a, b = shapes[names["A"]], shapes[names["B"]]
  transposed = embedding or bool(config.get("fan_in_fan_out"))
  whole = shapes[weight][::-1] if transposed else shapes[weight]
  if len(a) != 2 or len(b) != 2 or a[0] != b[1] or whole != (b[0], a[1]):
    raise reshard.InvalidArgumentError(
      f"'{weight}' {list(shapes[weight])}: A {list(a)} and B {list(b)} do not give its shape"
    )
  return _Change(names["A"], names["B"], scale_of(config, module, a[0]), transposed)


def _check_weight(local: reshard.LocalTensor, given: Any) -> None:
  import torch

  if not isinstance(given, torch.Tensor):
    raise reshard.InvalidArgumentError(f"'{local.name}': a {type(given).__name__} is no tensor of torch")
  if given.dtype not in (torch.bfloat16, torch.float16, torch.float32) or local.map != "identity":
    raise reshard.UnsupportedError(
      f"'{local.name}': an adapter is merged into BF16, F16 or F32, not into {given.dtype} ({local.map})"
    )
  if not given.is_contiguous():
    raise reshard.InvalidArgumentError(f"'{local.name}' is not contiguous")


def _fetched(
  layout: reshard.Layout,
  tensors: Mapping[str, Any],
  factors: list[str],
  rank: int,
  group: reshard.ProcessGroup | None,
  timeout: float,
) -> tuple[Mapping[str, torch.Tensor], reshard.Session | None]:
  """The factors, whole, by name; and the session that brings them here, unless this rank has all of them."""
  if group is None:
    return _own(layout, tensors, factors, rank), None
  import torch

  table = [entry for entry in manifest.table_of(layout.model) if entry[0] in set(factors)]
  model = manifest.model_of(table, "adapters")
  descriptions = {r: manifest.describe(layout, r, table) for r in layout.ranks}
  builder = reshard.LayoutBuilder("factors", model)
  whole: dict[str, torch.Tensor] = {}
  for name, _, shape, _ in table:
    box = reshard.PlacedBox(name, [(0, n) for n in shape], [0] * len(shape))
    builder.add(list(layout.ranks), name, shape, "float32", parts=[box], casts=True)
    whole[name] = torch.empty(shape, dtype=torch.float32)
  session = reshard.Session(
    group,
    source=manifest.build("adapters", model, descriptions),
    source_tensors={entry["name"]: tensors[entry["name"]] for entry in descriptions.get(rank, [])},
    target=builder.finish(),
    target_tensors=whole,
    timeout=timeout,
  )
  return whole, session


def _own(
  layout: reshard.Layout, tensors: Mapping[str, Any], factors: list[str], rank: int
) -> dict[str, torch.Tensor]:
  """The factors, if this rank has all of them, each as a tensor of its own."""
  shapes = {t.name: tuple(t.shape) for t in layout.model.tensors}
  found: dict[str, torch.Tensor] = {}
  for local in layout.local(rank):
    whole = local.fragments[0].tensor if len(local.fragments) == 1 else ""
    if whole in factors and tuple(local.shape) == shapes[whole]:
      found[whole] = _local(tensors[local.name])
  for name in factors:
    if name not in found:
      raise reshard.InvalidArgumentError(f"'{name}' is not whole on rank {rank}: pass the ranks' group")
  return found
