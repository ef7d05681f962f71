# SPDX-License-Identifier: Apache-2.0
"""A checkpoint engine for NeMo-RL, selected by its path. docs/nemo_rl.md.

    policy:
      generation:
        refit_transport: "reshard.nemo_rl:CheckpointEngine"

Needs NeMo-RL.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import Any

import reshard
import torch
from nemo_rl.utils.checkpoint_engines import base
from reshard.engines.link import Link, TornError
from reshard.engines.offers import Offer, chosen
from reshard.engines.stream import Stream, default_device, even_pieces

__all__ = ["CheckpointEngine", "TornError"]


class CheckpointEngine(base.CheckpointEngine):  # type: ignore[misc]
  """Moves weights from NeMo-RL's policy workers to its vLLM workers.

  NeMo-RL makes one in each of them, and calls prepare() and init_*_process_group() once, then
  send_weights() and receive_weight_batches() for each refit. Policy workers have gathered the
  tensors when they hand them over; each sends an equal share of every bucket.

  bucket_size           bytes that move at a time; of the GPU's memory that
                        `update_weights_bucket_memory_ratio` allows.

  What follows is from `refit_cfg`, under the engine's path.

  release_after_refit   NeMo-RL's: it then makes a new group for each refit.
  shard_expert_weights  not supported: workers get whole tensors.
  keep_old              a worker gets nothing before all has arrived: if a policy worker fails it
                        keeps its old weights. The model is then whole in its host's memory.
  verify                compare fingerprints of what was sent and what arrived.
  transport             "auto": shared memory within a host, else UCX or Gloo; or one by name.
  timeout               seconds for joining and for each step; longer than vLLM needs for a bucket.
  device                where vLLM gets tensors; None: on the accelerator if there is one.
  """

  def __init__(
    self,
    bucket_size: int,
    release_after_refit: bool = False,
    shard_expert_weights: bool = False,
    keep_old: bool = False,
    verify: bool = False,
    transport: str = "auto",
    timeout: float = 300.0,
    device: str | None = None,
  ) -> None:
    if bucket_size < 1:
      raise ValueError(f"bucket_size {bucket_size}: at least 1 byte")
    if shard_expert_weights:
      raise reshard.UnsupportedError("reshard.nemo_rl: shard_expert_weights: workers get whole tensors")
    self.bucket_size = bucket_size
    self.release_after_refit = release_after_refit
    self._keep_old, self._verify, self._timeout = keep_old, verify, timeout
    self._transport = transport
    self._device = torch.device(device) if device else default_device()
    self._offer: Offer | None = None
    self._stream: Stream | None = None

  def prepare(self) -> dict[str, Any]:
    """Listens at a free port, and says where. Plain JSON, with a secret.

    Any worker may turn out to be the first policy worker, whose place is taken.
    """
    if self._offer is not None:
      self._offer.close()
    self._offer = Offer(True, self._transport)
    return dict(self._offer.metadata)

  def init_policy_process_group(
    self, *, worker_rank: int, train_world_size: int, rollout_world_size: int, metadata: list[Any]
  ) -> None:
    """Collective over policy and rollout workers: joins them.

    metadata  of all workers, those of the policy first.

    Errors: ValueError for ranks outside the sizes; DeadlineError naming the workers that did not come.
    """
    if not 0 <= worker_rank < train_world_size:
      raise ValueError(f"worker_rank {worker_rank} of {train_world_size}")
    self._join(worker_rank, train_world_size, rollout_world_size, metadata)

  def init_rollout_process_group(
    self, *, rollout_rank: int, train_world_size: int, rollout_world_size: int, metadata: list[Any]
  ) -> None:
    """The same for a rollout worker; its rank is that among all vLLM workers."""
    if not 0 <= rollout_rank < rollout_world_size:
      raise ValueError(f"rollout_rank {rollout_rank} of {rollout_world_size}")
    rank = train_world_size + rollout_rank
    self._join(rank, train_world_size, rollout_world_size, metadata)

  def _join(self, rank: int, trainers: int, rollouts: int, metadata: list[Any]) -> None:
    if len(metadata) != trainers + rollouts:
      raise ValueError(f"metadata of {len(metadata)} workers, but there are {trainers + rollouts}")
    offer, self._offer = self._offer, None
    if offer is None:
      raise RuntimeError("the process group is made before prepare()")
    self._leave()
    group = offer.join(chosen(metadata), rank, trainers + rollouts, self._timeout)
    link = Link(group, self._timeout, self._verify)
    self._stream = Stream(
      link, senders=trainers, bucket=self.bucket_size, keep=self._keep_old, device=self._device
    )

  def finalize(self) -> None:
    """Leaves the group. Idempotent."""
    if self._offer is not None:
      self._offer.close()
    self._leave()

  async def send_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
    """A policy worker's part of a refit. Returns once every rollout worker has all tensors.

    weights  (name, tensor), whole tensors, the same on all policy workers. It is used up, also if the
             refit fails, because making them may be collective.

    Errors: what `weights` raises, on all workers an AbortedError with its text; InvalidArgumentError if
    policy workers send different tensors; AbortedError or DeadlineError if a worker dies or stays away.
    """
    stream = self._joined()
    with torch.no_grad():
      await stream.send(even_pieces(weights, stream.link.rank, stream.senders))

  async def receive_weight_batches(self) -> AsyncIterator[list[tuple[str, torch.Tensor]]]:
    """A rollout worker's part of a refit: lists of (name, tensor), whole tensors, the caller's.

    Errors: as of send_weights(). Without `keep_old`, TornError (an AbortedError) says that some
    tensors were yielded before: vLLM's weights are of two versions then, until a refit succeeds. Any
    other error leaves it with its old ones.
    """
    async with contextlib.aclosing(self._joined().receive()) as batches:  # type: ignore[type-var]
      async for batch in batches:
        yield batch

  def _joined(self) -> Stream:
    if self._stream is None:
      raise RuntimeError("no process group: call prepare() and init_*_process_group() first")
    return self._stream

  def _leave(self) -> None:
    stream, self._stream = self._stream, None
    if stream is not None:
      stream.close()
