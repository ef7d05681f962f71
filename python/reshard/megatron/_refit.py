# SPDX-License-Identifier: Apache-2.0
"""Megatron-Core's refit calls over sessions of reshard."""

from __future__ import annotations

import secrets
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import reshard
from reshard._collective import gathered
from reshard._gpus import gpu_for
from reshard._session_cache import CachedSession, SessionCache
from reshard.live._groups import first_group, shared_group
from reshard.live._watch import seen, watched
from reshard.megatron._operations import Operations
from reshard.megatron._pairs import Pair, described, digest_of, modules_of
from reshard.megatron._service import CopyService
from reshard.megatron._transforms import Transform, check_covered, quantise, quantised, renew_derived
from reshard.tracing._types import torch_dtype

if TYPE_CHECKING:
  from torch.distributed import ProcessGroup as TorchGroup

#: Megatron's names of backends that mean the best transport at hand.
_BEST = ("gloo", "nixl", "nccl_m2n")
#: Pairs of models whose sessions are cached.
_MOST = 16

_services: dict[tuple[str, int], CopyService] = {}
_pairs: SessionCache[_PreparedPair] = SessionCache(_MOST)
_generation = secrets.token_hex(8)

def get_or_create_service(
  backend: str, group: TorchGroup | None = None, execution_batch_bytes: int | None = None
) -> CopyService:
  """The copy service of a backend and group: made by the first call, then kept.

  backend  a transport of reshard ("shm", "ucx", "mpi", "nccl", "nvshmem"), or "auto". Of Megatron's names,
           "nccl" and "nvshmem" mean these transports, with torch's current GPU; "gloo", "nixl" and "nccl_m2n"
           mean "auto", the best transport at hand
  group    of all ranks that refit; None: the default one
  execution_batch_bytes  is not needed: nothing is staged that could be batched

  Raises ValueError for another type or an empty name. A transport that cannot be used is an UnsupportedError of
  the first refit, which says why.
  """
  if not isinstance(backend, str) or not backend:
    raise reshard.InvalidArgumentError(f"unknown backend {backend!r}")
  key = (backend, id(group))
  if key not in _services:  # which keeps the group, and so its id
    _services[key] = CopyService(group, "auto" if backend in _BEST else backend)
  return _services[key]


def clear_service_cache() -> None:
  """Closes the services that get_or_create_service() made, and the sessions of all pairs of models."""
  clear_plan_cache()
  while _services:
    _services.popitem()[1].close()


def clear_plan_cache() -> None:
  """Ends the sessions of all pairs of models on this rank. The next call plans anew, on all ranks."""
  global _generation
  _generation = secrets.token_hex(8)
  _pairs.close()


def clear_all_caches() -> None:
  """clear_service_cache(), which does also what clear_plan_cache() does."""
  clear_service_cache()


def prepare_swap_model_weights(
  src_model: Any,
  target_model: Any,
  group: TorchGroup | None = None,
  src_rank_offset: int = 0,
  dst_rank_offset: int = 0,
  num_dst_pools: int = 1,
  dst_pool_index: int = 0,
  execution_batch_bytes: int | None = None,
) -> None:
  """Plans a pair of models before the first refit. Collective; arguments as for swap_model_weights().

  A target whose config asks for MXFP8 inference (`transformer_impl` "inference_optimized", `fp8_recipe`
  "mxfp8") is quantised by Megatron, in place: its weights are then in buffers that stay where they are,
  and each refit quantises what arrives into these. It must not be quantised yet.

  Raises UnsupportedError for such a target where Megatron cannot quantise it, and what
  swap_model_weights() raises.
  """
  service = get_or_create_service("auto", group)
  pools = _Pools(num_dst_pools, dst_pool_index)
  for pool in pools.numbers:
    target = target_model if pool == dst_pool_index else None
    _ready(src_model, target, service, group, None, pool, pools, prepares=True)


def swap_model_weights(
  src_model: Any,
  target_model: Any,
  refit_method: Any,
  group: TorchGroup | None = None,
  src_rank_offset: int = 0,
  dst_rank_offset: int = 0,
  transform: Transform | None = None,
  num_dst_pools: int = 1,
  dst_pool_index: int = 0,
  execution_batch_bytes: int | None = None,
) -> None:
  """Writes the weights of one model into another that is cut in another way. Collective.

      reshard.megatron.swap_model_weights(trainer, engine, "gloo")  # on every rank, every step

  src_model     of this rank: a module, a list with the chunks of its pipeline stage, or None
  target_model  the same. Ranks may have both, one, or none of them; all of the group call
  refit_method  the name of a backend, see get_or_create_service(); or a copy service, of reshard or
                another, which then carries the plan's operations
  group         all ranks that take part; None: the default group
  src_rank_offset, dst_rank_offset
                are not needed: ranks are those of `group`, and what a rank holds follows from its
                position in its model's own groups
  transform     an object with the methods of Megatron's ReshardTransform; may be given on some ranks.
                None: for a target that prepare_swap_model_weights() quantised, that which it made
  num_dst_pools, dst_pool_index
                several targets, one pass for each; this rank's target belongs to pool dst_pool_index
  execution_batch_bytes
                is not needed: weights move from memory to memory

  The first call with a pair of models plans; later ones move bytes only. Ranks compare digests of what
  they have before each: a model that was replaced, on any rank, is planned anew on all. Persistent
  buffers of the target take the dtypes of the source's.

  Raises TypeError for a refit_method that is neither; NotFoundError for a tensor that the source lacks,
  InvalidArgumentError for one of another full shape, for what is no module, and for pools that are not
  those of the other ranks; DeadlineError for ranks that do not call. All are raised on all ranks: the others
  name the rank, with InvalidArgumentError for a TypeError. The group works afterwards.
  """
  service = refit_method
  if isinstance(refit_method, str):
    service = get_or_create_service(refit_method, group, execution_batch_bytes)
  pools = _Pools(num_dst_pools, dst_pool_index)
  for pool in pools.numbers:
    target = target_model if pool == dst_pool_index else None
    _ready(src_model, target, service, group, transform, pool, pools).run(service, transform)


def reshard_model_weights(
  src_model: Any,
  target_model: Any,
  service: Any,
  group: TorchGroup | None = None,
  src_rank_offset: int = 0,
  dst_rank_offset: int = 0,
  transform: Transform | None = None,
  pool_index: int = 0,
  execution_batch_bytes: int | None = None,
) -> None:
  """One pass of swap_model_weights(), with a copy service instead of a name."""
  pools = _Pools(None, pool_index)
  _ready(src_model, target_model, service, group, transform, pool_index, pools).run(service, transform)


class _Pools(NamedTuple):
  """The targets of a refit, filled one after the other, and which of them this rank's is. As the caller gave them.

  count  None: the caller counts, and gives each by its number
  """

  count: Any
  index: Any

  @property
  def numbers(self) -> range:
    """The pools; one if there is none, so that all ranks learn of it."""
    return range(self.count if _is_whole(self.count, 1) else 1)

  def check(self) -> None:
    """Raises InvalidArgumentError for a count or an index that cannot be."""
    if self.count is not None and not _is_whole(self.count, 1):
      raise reshard.InvalidArgumentError(f"num_dst_pools={self.count!r}: must be 1 or more")
    if not _is_whole(self.index, 0) or (self.count is not None and self.index >= self.count):
      below = "" if self.count is None else f", below num_dst_pools={self.count}"
      raise reshard.InvalidArgumentError(f"dst_pool_index={self.index!r}: must be 0 or more{below}")


def _is_whole(value: Any, least: int) -> bool:
  return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_service(value: Any) -> bool:
  return callable(getattr(value, "submit_send", None))


def _ready(
  source: Any,
  target: Any,
  service: Any,
  torch_group: Any,
  transform: Transform | None,
  pool: int,
  pools: _Pools,
  prepares: bool = False,
) -> _PreparedPair:
  """The session or the operations of a pair of models, as all ranks agree. Collective."""
  ours = service if isinstance(service, CopyService) else get_or_create_service("auto", torch_group)
  used = torch_group if torch_group is not None else ours.group
  _pairs.drop_dead()

  def agree() -> dict[str, Any]:
    if not _is_service(service):
      raise TypeError("refit_method must be the name of a backend or a copy service")
    gpu_for(ours.transport)
    pools.check()
    if prepares:
      quantise(modules_of(target))
    used = _transform_of(target, transform)
    check_covered(modules_of(target), used)
    digest, plain = digest_of(source, target, (_generation, pool))
    return {
      "digest": digest,
      "operations": used is not None or service is not ours or not plain,
      "transport": ours.transport,
      "num_dst_pools": pools.count,
    }

  # Over the first group that there is, so that a rank whose arguments are wrong meets the others.
  first = first_group(used) or shared_group(used, ours.transport, ours.timeout)
  said = gathered(first, agree, "swap_model_weights", ours.timeout)
  for name in ("transport", "num_dst_pools"):
    for rank, other in enumerate(said):
      if other[name] != said[0][name]:
        raise reshard.InvalidArgumentError(
          f"swap_model_weights: {name} {other[name]} on rank {rank}, but {said[0][name]} on rank 0"
        )
  group = shared_group(used, ours.transport, ours.timeout)
  operations = any(one["operations"] for one in said)
  key = (id(group), ours.transport, operations, *(one["digest"] for one in said))
  ready = _pairs.find(key)
  if ready is None:
    everyone = gathered(group, lambda: described(source, target), "swap_model_weights", ours.timeout)
    made = _PreparedPair(group, used, Pair.of(everyone), operations, source, target, ours.timeout)
    ready = _pairs.keep(key, made)
  return ready


def _tensors_of(modules: list[Any]) -> dict[str, Any]:
  return seen(modules).tensors if modules else {}


def _transform_of(target: Any, transform: Transform | None) -> Transform | None:
  known = quantised(modules_of(target))
  return transform if transform is not None or known is None else known.transform


class _PreparedPair(CachedSession):
  """A pair of models that has been planned."""

  def __init__(
    self,
    group: reshard.ProcessGroup,
    torch_group: Any,
    pair: Pair | None,
    operations: bool,
    source: Any,
    target: Any,
    timeout: float,
  ) -> None:
    super().__init__(group)
    self._torch_group = torch_group
    self._pair = pair
    self._models = [[weakref.ref(module) for module in modules_of(model)] for model in (source, target)]
    self._timeout = timeout
    self._dtypes = {} if pair is None else pair.buffer_dtypes(group.rank)
    self._operations: Operations | None = None
    self._take_dtypes()
    if pair is not None and operations:
      self._operations = Operations(pair, group.rank, group.size)
    elif pair is not None:
      self.session = self._made(pair)

  def _made(self, pair: Pair) -> reshard.Session:
    rank = self.group.rank
    return reshard.Session(
      self.group,
      source=pair.source,
      source_tensors=(lambda: seen(self._source).tensors) if rank in pair.source.ranks else None,
      target=pair.target,
      target_tensors=(lambda: seen(self._target).tensors) if rank in pair.target.ranks else None,
      replan=True,
      ignore=pair.ignored,
      timeout=self._timeout,
    )

  @property
  def alive(self) -> bool:
    return super().alive and all(module() is not None for model in self._models for module in model)

  @property
  def _source(self) -> list[Any]:
    return [module() for module in self._models[0]]

  @property
  def _target(self) -> list[Any]:
    return [module() for module in self._models[1]]

  def _take_dtypes(self) -> None:
    """Gives the target's buffers the dtypes of the source's."""
    if not self._target:
      return
    cast = False
    for name, buffers, key in seen(self._target).buffers:
      buffer, said = buffers[key], self._dtypes.get(name)
      if said is not None and buffer.dtype != torch_dtype(said):
        buffers[key], cast = buffer.to(torch_dtype(said)), True
    if cast:
      watched(self._target)

  def run(self, service: Any, transform: Transform | None) -> None:
    self._take_dtypes()
    if self._operations is not None:
      mine, theirs = _tensors_of(self._source), _tensors_of(self._target)
      used = _transform_of(self._target, transform)
      self._operations.run(mine, theirs, service, used, self._torch_group)
      renew_derived(self._target)
    else:
      self.refit()

  def close(self) -> None:
    super().close()
    self._operations = None
