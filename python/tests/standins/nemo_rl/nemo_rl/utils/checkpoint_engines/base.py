# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the abstract class and the factory."""

import abc
import importlib


class CheckpointEngine(abc.ABC):
  shard_expert_weights = False

  def get_target_weight_layout(self):
    return None

  @abc.abstractmethod
  def prepare(self): ...

  @abc.abstractmethod
  def init_policy_process_group(self, *, worker_rank, train_world_size, rollout_world_size, metadata): ...

  @abc.abstractmethod
  def init_rollout_process_group(self, *, rollout_rank, train_world_size, rollout_world_size, metadata): ...

  def finalize(self):
    pass

  @abc.abstractmethod
  async def send_weights(self, weights): ...

  @abc.abstractmethod
  def receive_weight_batches(self): ...


def create_checkpoint_engine(backend, *, bucket_size_bytes, engine_kwargs):
  module, name = backend.split(":")
  return getattr(importlib.import_module(module), name)(bucket_size=bucket_size_bytes, **engine_kwargs)
