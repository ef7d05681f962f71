# SPDX-License-Identifier: Apache-2.0
"""A checkpoint engine for verl: the back end `reshard`. docs/verl.md.

    actor_rollout_ref.rollout.checkpoint_engine.backend=reshard
    actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=reshard.verl

Importing this module registers it. `reshard.verl.sharded` is the same with the trainer's shards as
the source, where verl hands over the training engine. Needs verl.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import Any

import torch
from reshard.engines.link import Link, TornError
from reshard.engines.offers import Offer, chosen
from reshard.engines.stream import Stream, default_device, even_pieces
from reshard.verl._shards import engine_pieces
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

__all__ = ["ReshardCheckpointEngine", "TornError"]


@CheckpointEngineRegistry.register("reshard")
class ReshardCheckpointEngine(CheckpointEngine):  # type: ignore[misc]
  """Moves weights from verl's actors to its rollouts.

  verl makes one in each actor and rollout worker, and calls prepare(), build_topology() in its
  driver, init_process_group(), send_weights() or receive_weights(), and finalize(), in this order,
  for each update. Of tensors that all actors have whole, each sends an equal share.

  bucket_size    bytes that move at a time (`update_weights_bucket_megabytes`).
  is_master      verl sets it on the first actor.

  What follows is from `engine_kwargs.reshard`, equal in all workers.

  rebuild_group  make a new group for each update. False: the group and its plans are kept as long as
                 the workers stay the same and the last update succeeded.
  keep_old       a rollout gets nothing before all has arrived: if an actor fails it keeps its old
                 weights. The model is then whole in the memory of each rollout worker's host.
  verify         compare fingerprints of what was sent and what arrived.
  transport      "auto": shared memory within a host, else UCX or Gloo; or one by name.
  address        of the first actor's host, as the others reach it; None: found out.
  timeout        seconds for joining and for each step; longer than a rollout needs for a bucket.
  device         where rollouts get tensors; None: on the accelerator if there is one, else the host.
  """

  wire_format = "named_tensors"

  def __init__(
    self,
    bucket_size: int,
    is_master: bool = False,
    rebuild_group: bool = False,
    keep_old: bool = False,
    verify: bool = False,
    transport: str = "auto",
    address: str | None = None,
    timeout: float = 300.0,
    device: str | None = None,
  ) -> None:
    self.bucket_size = bucket_size
    self.is_master = is_master
    self.rebuild_group = rebuild_group
    self._keep_old, self._verify, self._timeout = keep_old, verify, timeout
    self._transport, self._address = transport, address
    self._device = torch.device(device) if device else default_device()
    self._offer: Offer | None = None
    self._stream: Stream | None = None
    self._group = ""
    self._plain: bool | None = None

  def prepare(self) -> dict[str, Any]:
    """What build_topology() needs of this worker. Plain JSON; of the first actor, with the secret."""
    if self._offer is not None:
      self._offer.close()
    self._offer = Offer(self.is_master, self._transport, self._address)
    stream = self._stream
    works = stream is not None and stream.works
    member = [self._group, stream.link.rank, stream.link.size] if stream and works else None
    return {**self._offer.metadata, "member": member}

  @classmethod
  def build_topology(
    cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
  ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    """The arguments of init_process_group() for actors and rollouts, a list entry for each worker.

    Actors are the first ranks. A group whose members and ranks are the same as before is kept.
    """
    size = actor_wg_world_size + rollout_world_size
    if len(metadata) != size:
      raise ValueError(f"metadata of {len(metadata)} workers, but there are {size}")
    place = chosen(metadata)
    first = metadata[0]["member"]
    if first and all(m["member"] == [first[0], rank, size] for rank, m in enumerate(metadata)):
      place = {}
    every: dict[str, list[Any]] = {
      "rank": list(range(size)),
      "world_size": [size] * size,
      "actors": [actor_wg_world_size] * size,
      "place": [place] * size,
    }
    actors = {name: values[:actor_wg_world_size] for name, values in every.items()}
    return actors, {name: values[actor_wg_world_size:] for name, values in every.items()}

  def init_process_group(self, rank: int, world_size: int, actors: int, place: dict[str, Any]) -> None:
    """Collective over actors and rollouts. Joins them, or stays with them.

    Errors: DeadlineError naming the workers that did not come.
    """
    offer, self._offer = self._offer, None
    if offer is None:
      raise RuntimeError("init_process_group before prepare")
    if not place:
      offer.close()
      return
    self._close()
    group = offer.join(place, rank, world_size, self._timeout)
    link = Link(group, self._timeout, self._verify)
    self._stream = Stream(
      link, senders=actors, bucket=self.bucket_size, keep=self._keep_old, device=self._device
    )
    self._group = place["job"]

  def finalize(self) -> None:
    """Ends an update."""
    if self.rebuild_group:
      self._close()

  @torch.no_grad()
  async def send_weights(
    self, weights: Iterable[tuple[str, torch.Tensor]] | Any, global_steps: int | None = None
  ) -> None:
    """An actor's part of an update. Returns once every rollout has all tensors.

    weights       (name, tensor), whole tensors, the same on all actors; or verl's training engine,
                  whose shards are sent as they are if it says where they belong, else gathered.
    global_steps  the version, equal in all workers; if it is None or does not grow, the last plus one.

    Errors: what `weights` raises, on all workers an AbortedError with its text; InvalidArgumentError if
    actors send different tensors; AbortedError or DeadlineError if a worker dies or stays away.
    """
    stream = self._joined()
    rank, actors = stream.link.rank, stream.senders
    if hasattr(weights, "get_per_tensor_param"):
      with stream.link.ends_the_group():
        self._plain, pieces = engine_pieces(weights, rank, actors, self._plain)
    else:
      pieces = even_pieces(weights, rank, actors)
    await stream.send(pieces, global_steps)

  async def receive_weights(
    self, global_steps: int | None = None
  ) -> AsyncIterator[tuple[str, torch.Tensor]]:
    """A rollout's part of an update: (name, tensor), whole tensors, which are the caller's.

    Errors: as of send_weights(). Without `keep_old`, TornError (an AbortedError) says that some
    tensors were yielded before: the rollout's weights are of two versions then, until the next update
    succeeds. Any other error leaves it with its old ones.
    """
    stream = self._joined()
    async with contextlib.aclosing(stream.receive(global_steps)) as batches:  # type: ignore[type-var]
      async for batch in batches:
        for name, tensor in batch:
          yield name, tensor

  def _joined(self) -> Stream:
    if self._stream is None:
      raise RuntimeError("no process group: call prepare() and init_process_group() first")
    return self._stream

  def _close(self) -> None:
    stream, self._stream = self._stream, None
    if stream is not None:
      stream.close()
