# SPDX-License-Identifier: Apache-2.0
"""xferdtensor, and the functions of others with its meaning."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from reshard import _core
from reshard._arguments import checked
from reshard._collective import gathered
from reshard._errors import InvalidArgumentError, UnsupportedError, add_note
from reshard.dtensor._grids import grid_of, shape_of
from reshard.dtensor._sessions import Sessions, Verify, sessions_of
from reshard.dtensor._sides import Item
from reshard.live._groups import shared_group

if TYPE_CHECKING:
  from typing_extensions import Self  # of typing from Python 3.11 on

_open = threading.local()  # .batch: the one that collects this thread's calls


@checked
def xferdtensor(
  src_tensor: Any,
  src_mesh: Any,
  src_placement: Any,
  dst_tensor: Any,
  dst_mesh: Any,
  dst_placement: Any,
  process_group: Any = None,
  stream: Any = None,
  *,
  transport: str = "auto",
  verify: Verify = "never",
  timeout: float = 60.0,
) -> None:
  """Moves a distributed tensor into another of the same shape, in place. Collective.

      xferdtensor(weight, trainer_mesh, [Shard(0)], None, engine_mesh, [Replicate()], group)  # trainer
      xferdtensor(None, trainer_mesh, [Shard(0)], served, engine_mesh, [Replicate()], group)  # engine

  Every rank of the group calls it, in the same order, also one that has neither tensor.

  src_tensor       on the ranks of src_mesh: a DTensor, this rank's shard, or an object with `.shape`
                   (of the full tensor) and `._local_tensor`. None on others
  src_mesh         a DeviceMesh, an object with `.mesh`, an integer tensor or array, or nested lists
                   of global ranks; up to 8 dimensions, in any order, overlapping dst_mesh or not.
                   None: that of the DTensor, or as other ranks say. DTensors of sub-meshes, which
                   differ between ranks, need None for both
  src_placement    one of Replicate, Shard (uneven shards as torch.chunk cuts) and _StridedShard for
                   each dimension of the mesh. None: as for src_mesh
  dst_tensor, dst_mesh, dst_placement
                   the same of the target, whose ranks' memory is written. It may be that of
                   src_tensor: what is read is then copied first
  process_group    of torch.distributed, by default that of all processes; or a reshard.ProcessGroup,
                   whose ranks the meshes then name
  stream           of torch.cuda, or its handle: tensors of a GPU are read after its work, and after
                   that of torch's current stream; the result is there when the call returns. Ignored
                   for tensors of the host
  transport        as for reshard.from_torch(); chosen by the first call of a process group. Not used
                   with a reshard.ProcessGroup
  verify           "always" compares fingerprints of what was sent and what arrived
  timeout          seconds for each step: then DeadlineError, on all ranks

  Shards of this rank that are all on one GPU are used there; where source and target are on two, or
  this build of reshard has no kernels for it, they are copied through the host's memory. Shards that
  are not contiguous are copied once more. F32, BF16 and F16 are converted to what the target has; other
  dtypes must be equal.

  Calls with the same tensors, meshes and placements as an earlier one use its plan and session again;
  they keep no tensor alive. Inside a batch() the call is only noted.

  Raises InvalidArgumentError or UnsupportedError for what is wrong, with the argument's name;
  DeadlineError or AbortedError for ranks that do not come or die. An error on one rank is raised on
  all.
  """
  item = Item(src_tensor, src_mesh, src_placement, dst_tensor, dst_mesh, dst_placement, stream)
  collecting = getattr(_open, "batch", None)
  if collecting is not None:
    collecting.add(item, process_group)
  else:
    _move([item], process_group, transport, verify, timeout)


@checked
def xferdtensors(
  transfers: Iterable[Sequence[Any]],
  process_group: Any = None,
  stream: Any = None,
  *,
  transport: str = "auto",
  verify: Verify = "never",
  timeout: float = 60.0,
) -> None:
  """Many xferdtensor() in one plan and session. Collective.

  transfers  of each the first six arguments of xferdtensor(), in the same order on all ranks

  The other arguments and errors are those of xferdtensor(); messages count tensors from 0.
  """
  items = []
  for i, six in enumerate(transfers):
    if len(six) != 6:
      raise InvalidArgumentError(f"xferdtensors: transfer {i} has {len(six)} arguments, not 6")
    src, src_mesh, src_placement, dst, dst_mesh, dst_placement = six
    items.append(Item(src, src_mesh, src_placement, dst, dst_mesh, dst_placement, stream))
  _move(items, process_group, transport, verify, timeout)


class batch:  # noqa: N801: it is used as a function
  """Collects the calls of a with block, and moves their tensors at its end, in one plan and session.

      with reshard.dtensor.batch(group):
        for src, dst in pairs:
          xferdtensor(src, mesh, rows, dst, other, columns, group)

  The arguments are those of xferdtensor(). Collective at its end: targets have their values then, and
  no source may change before. An exception that ends the block on one rank is raised there, and on
  the others as an error that names the rank. Blocks do not nest. Of one thread.
  """

  def __init__(
    self,
    process_group: Any = None,
    *,
    transport: str = "auto",
    verify: Verify = "never",
    timeout: float = 60.0,
  ) -> None:
    self._group, self._transport, self._verify, self._timeout = process_group, transport, verify, timeout
    self._items: list[Item] = []

  def add(self, item: Item, process_group: Any) -> None:
    """Notes a transfer. Raises InvalidArgumentError for another process group than the batch's."""
    if process_group is not None and process_group is not self._group:
      world = dist.group.WORLD if dist.is_initialized() else None
      if self._group is not None or process_group is not world:
        raise InvalidArgumentError("batch: a transfer names another process group than the batch")
    self._items.append(item)

  def __enter__(self) -> Self:
    if getattr(_open, "batch", None) is not None:
      raise InvalidArgumentError("batch: inside another batch")
    self._items.clear()
    _open.batch = self
    return self

  def __exit__(
    self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
  ) -> None:
    _open.batch = None
    if not isinstance(error, Exception):
      if error is None:
        _move(self._items, self._group, self._transport, self._verify, self._timeout)
      return
    sessions, _ = sessions_over(self._group, self._transport, self._timeout)
    failed = error

    def fail() -> None:
      raise failed

    try:
      gathered(sessions.group, fail, "batch", self._timeout)
    except Exception as raised:
      if raised is not failed:
        add_note(failed, f"and then: {raised}")


@checked
def xdtensor_reshard(
  src: Any,
  dst: Any,
  comm: Any,
  stream: Any = None,
  *,
  src_mesh: Any = None,
  src_placements: Sequence[Any] | None = None,
  dst_mesh: Any = None,
  dst_placements: Sequence[Any] | None = None,
  handle: Any = None,
) -> None:
  """xferdtensor() with the arguments of nccl.m2n's function of this name. Collective.

  comm    a process group, as for xferdtensor(), in place of a communicator of NCCL
  handle  None: there is none here

  Placements may be nccl.m2n's, torch's or integers, and fewer than dimensions of the mesh: the rest
  replicate. Returns when the target has its values. Its limits (two mesh dimensions, contiguous
  ranks, disjoint sides, even division, equal dtypes) are not ours.
  """
  if handle is not None:
    raise UnsupportedError("xdtensor_reshard: a handle of NCCL has no use here; pass None")
  sides = [_padded(src_mesh, src_placements), _padded(dst_mesh, dst_placements)]
  xferdtensor(src, src_mesh, sides[0], dst, dst_mesh, sides[1], comm, stream)


def _padded(mesh: Any, placements: Sequence[Any] | None) -> Sequence[Any] | None:
  if mesh is None or placements is None:
    return placements
  from torch.distributed.tensor import Replicate

  missing = len(shape_of(mesh, "mesh")) - len(placements)
  return [*placements, *([Replicate()] * missing)] if missing > 0 else placements


@checked
def mxn_cast(
  buf: torch.Tensor,
  src_local_shape: Sequence[int],
  src_mesh: Any,
  src_placements: Sequence[Any],
  dst_local_shape: Sequence[int],
  dst_mesh: Any,
  dst_placements: Sequence[Any],
  group: Any,
) -> None:
  """xferdtensor() with the arguments that torch proposes for its own (RFC 181061). Collective.

  buf              contiguous, long enough for this rank's shards: on ranks of src_mesh it begins
                   with the source's shard, and stays as it is if the rank is not in dst_mesh; on
                   ranks of dst_mesh it begins with the target's shard when the call returns
  src_local_shape, dst_local_shape
                   of this rank's shards, row-major; not used on ranks outside of that mesh
  group            a process group, as for xferdtensor(), or the name of one of torch's

  Meshes may be disjoint, overlap or be the same.
  """
  if isinstance(group, str):
    resolve: Any = vars(dist.distributed_c10d)["_resolve_process_group"]
    group = resolve(group)
  sessions, ranks = sessions_over(group, "auto", 60.0)
  shards: list[torch.Tensor | None] = [None, None]
  here = sessions.group

  def cut() -> None:
    for k, (mesh, shape) in enumerate(((src_mesh, src_local_shape), (dst_mesh, dst_local_shape))):
      if here.rank in grid_of(mesh, ranks, here.size, ("src", "dst")[k] + "_mesh").ranks:
        shards[k] = _front(buf, shape, ("src", "dst")[k] + "_local_shape")

  gathered(here, cut, "mxn_cast", 60.0)
  xferdtensor(shards[0], src_mesh, src_placements, shards[1], dst_mesh, dst_placements, group)


def _front(buf: torch.Tensor, shape: Sequence[int], what: str) -> torch.Tensor:
  size = math.prod(shape)
  if not buf.is_contiguous() or buf.numel() < size:
    raise InvalidArgumentError(f"{what} {list(shape)}: buf must be contiguous, with {size} elements or more")
  return buf.detach().view(-1)[:size].view(tuple(shape))


def _move(items: Sequence[Item], process_group: Any, transport: str, verify: Verify, timeout: float) -> None:
  sessions, ranks = sessions_over(process_group, transport, timeout)
  sessions.move(items, ranks, verify, timeout)


def sessions_over(
  process_group: Any, transport: str, timeout: float
) -> tuple[Sessions, Mapping[int, int] | None]:
  """The sessions of a group, and {global rank: rank in the group} if they differ."""
  if isinstance(process_group, _core.ProcessGroup):
    return sessions_of(process_group), None
  if process_group is not None and not isinstance(process_group, dist.ProcessGroup):
    raise InvalidArgumentError(
      "process_group: one of torch.distributed, a reshard.ProcessGroup or None, "
      f"not {type(process_group).__name__}"
    )
  group = shared_group(process_group, transport, timeout)
  members = dist.get_process_group_ranks(process_group)
  return sessions_of(group), {rank: i for i, rank in enumerate(members)}


@dataclasses.dataclass(frozen=True)
class Statistics:
  """What the calls over a process group did so far, on this rank."""

  made: int  # sessions
  reused: int  # calls that used one of an earlier call
  kept: int  # sessions now


@checked
def statistics(process_group: Any = None, transport: str = "auto") -> Statistics:
  """Counts of the sessions of a process group. Collective only if nothing was moved over it yet."""
  sessions, _ = sessions_over(process_group, transport, 60.0)
  return Statistics(sessions.made, sessions.reused, len(sessions))
