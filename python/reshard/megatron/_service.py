# SPDX-License-Identifier: Apache-2.0
"""A copy service for Megatron-Core's own refit: reshard.megatron.CopyService."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

import reshard
from reshard._collective import gathered
from reshard._gpus import common_homes, current_stream, is_at_home
from reshard._session_cache import CachedSession, SessionCache
from reshard.live._groups import shared_group
from reshard.megatron._tasks import Task, described, digest_of, layouts_of, names_of, shape_of

if TYPE_CHECKING:
  from torch.distributed import ProcessGroup as TorchGroup

  _Base: Any = object
else:
  try:  # so that Megatron's isinstance() knows it
    from megatron.core.resharding.copy_services.base import CopyService as _Base
  except ImportError:
    _Base = object

#: Sessions that are kept: one for each different set of copies, such as one for each destination pool.
_MOST = 16


class CopyService(_Base):  # type: ignore[misc]
  """Carries the copies of Megatron-Core's own plans in sessions of reshard.

      service = reshard.megatron.CopyService()  # on every rank, once
      reshard_model_weights(trainer, engine, service=service)  # Megatron's own, every step

  group      a process group of torch.distributed with all ranks that call run(); None: the default one.
             Ranks of submitted copies are those of this group
  transport  as for reshard.from_torch(); "auto" uses shared memory where all ranks are on one host; "nccl" and
             "nvshmem" join torch's current GPU
  timeout    seconds until DeadlineError, for each step of run()

  Takes the place of Megatron's GlooCopyService and its like, in all releases from 0.16 on. The first
  run() with a set of copies plans them, collectively; a later one with the same ids, peers, shapes and
  dtypes uses that session again, wherever the tensors are then.

  Tensors may be on a GPU, and are used there if all of this rank's are on the same one, after the work of
  torch's current stream. Else they pass through memory of the host. They are held until the next run() or
  close(). One thread at a time.
  """

  #: run() returns once all ranks' bytes are in place.
  requires_process_group_barrier = False
  #: A rank without copies takes part in run() all the same.
  supports_idle_ranks = True

  def __init__(self, group: TorchGroup | None = None, transport: str = "auto", timeout: float = 60.0) -> None:
    import torch.distributed as dist

    self.group = group
    self.rank: int = group.rank() if group is not None else dist.get_rank()
    self.world_size: int = group.size() if group is not None else dist.get_world_size()
    self.transport = transport
    self.timeout = timeout
    self._sends: list[Task] = []
    self._recvs: list[Task] = []
    self._cache: SessionCache[_Copies] = SessionCache(_MOST)

  def submit_send(self, src_tensor: torch.Tensor, dest_rank: int, task_id: int | None = None) -> None:
    """Notes that this rank sends a tensor. It must keep its values until run() has returned.

    src_tensor  of any shape, dtype and strides
    dest_rank   of the group; may be this rank
    task_id     equal on both sides. Copies between two ranks that share an id, or have none, are matched
                in the order in which they are submitted
    """
    self._sends.append(Task(task_id, src_tensor, dest_rank))

  def submit_recv(self, dest_tensor: torch.Tensor, src_rank: int, task_id: int | None = None) -> None:
    """Notes that this rank receives into a tensor, which run() fills. See submit_send()."""
    self._recvs.append(Task(task_id, dest_tensor, src_rank))

  def submit_send_with_id(self, task_id: int, src_tensor: torch.Tensor, dest_rank: int) -> None:
    """submit_send(), as releases before 0.18 call it."""
    self.submit_send(src_tensor, dest_rank, task_id)

  def submit_recv_with_id(self, task_id: int, dest_tensor: torch.Tensor, src_rank: int) -> None:
    """submit_recv(), as releases before 0.18 call it."""
    self.submit_recv(dest_tensor, src_rank, task_id)

  def set_model_roles(self, *, is_source: bool, is_destination: bool) -> None:
    """Nothing: the copies say who sends and who receives."""

  def run(self) -> None:
    """Carries out what was submitted since the last run. Collective: ranks without copies call it too.

    Raises InvalidArgumentError on all ranks for a copy that only one side submitted, or with another
    shape or dtype than the other side; it names the copy. DeadlineError names the ranks that did not
    call. Whatever happens, nothing is left submitted.
    """
    sends, recvs = self._sends, self._recvs
    self._sends, self._recvs = [], []
    group = shared_group(self.group, self.transport, self.timeout)
    key = (id(group), *group.all_gather(digest_of(sends, recvs), timeout=self.timeout))
    copies = self._cache.find(key)
    if copies is None:
      self._cache.drop_dead()
      copies = self._cache.keep(key, self._prepared(group, sends, recvs))
    try:
      copies.run(sends, recvs)
    except BaseException:
      self._cache.drop(key)
      raise

  def close(self) -> None:
    """Ends the sessions and lets go of all tensors; a later run() plans anew. Idempotent."""
    self._sends, self._recvs = [], []
    self._cache.close()

  def _prepared(self, group: reshard.ProcessGroup, sends: list[Task], recvs: list[Task]) -> _Copies:
    def describe() -> Any:
      for task in (*sends, *recvs):
        if not 0 <= task.peer < self.world_size:
          raise reshard.InvalidArgumentError(
            f"task {task.task}: no rank {task.peer} in a group of {self.world_size}"
          )
      return {"sends": described(sends, self.rank, True), "recvs": described(recvs, self.rank, False)}

    said = gathered(group, describe, "copy service", self.timeout)
    return _Copies(group, layouts_of(said), self.timeout)


class _Copies(CachedSession):
  """A set of copies that is run again and again, with tensors that may be elsewhere each time."""

  def __init__(
    self, group: reshard.ProcessGroup, layouts: tuple[reshard.Layout, reshard.Layout] | None, timeout: float
  ) -> None:
    super().__init__(group)
    self._layouts = layouts
    self._timeout = timeout
    self._source: dict[str, torch.Tensor] = {}
    self._target: dict[str, torch.Tensor] = {}

  def run(self, sends: list[Task], recvs: list[Task]) -> None:
    if self._layouts is None:
      return
    rank = self.group.rank
    homes = common_homes((t.tensor for t in sends), (t.tensor for t in recvs))
    mine = [[_at(task, home) for task in tasks] for tasks, home in zip((sends, recvs), homes, strict=True)]
    self._source = dict(zip(names_of(sends, rank, True), mine[0], strict=True))
    self._target = dict(zip(names_of(recvs, rank, False), mine[1], strict=True))
    if self.session is None:
      self.session = self._made(*self._layouts)
    self.refit(current_stream(*homes))
    for task, here in zip(recvs, mine[1], strict=True):
      if not is_at_home(task.tensor, homes[1]):
        task.tensor.detach().view(shape_of(task.tensor)).copy_(here)

  def _made(self, source: reshard.Layout, target: reshard.Layout) -> reshard.Session:
    rank = self.group.rank
    return reshard.Session(
      self.group,
      source=source,
      source_tensors=(lambda: _with_elements(self._source)) if rank in source.ranks else None,
      target=target,
      target_tensors=(lambda: _with_elements(self._target)) if rank in target.ranks else None,
      replan=True,
      timeout=self._timeout,
    )

  def close(self) -> None:
    super().close()
    self._source, self._target = {}, {}


def _at(task: Task, home: torch.device) -> torch.Tensor:
  """The tensor itself if a session can use it there, else a copy."""
  tensor = task.tensor.detach()
  if tensor.dim() == 0:
    tensor = tensor.view(1)
  return tensor if is_at_home(tensor, home) else tensor.to(home).contiguous()


def _with_elements(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
  return {name: tensor for name, tensor in tensors.items() if tensor.numel() > 0}
