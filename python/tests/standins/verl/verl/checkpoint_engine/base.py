# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the registry and the abstract class."""

import abc


class CheckpointEngineRegistry:
  _registry = {}

  def register(backend):
    def added(cls):
      CheckpointEngineRegistry._registry[backend] = cls
      return cls

    return added

  @classmethod
  def get(cls, backend):
    return cls._registry[backend]

  @classmethod
  def new(cls, backend, *args, **kwargs):
    return cls.get(backend)(*args, **kwargs)


class CheckpointEngine(abc.ABC):
  wire_format = "named_tensors"

  @abc.abstractmethod
  def prepare(self): ...

  @classmethod
  @abc.abstractmethod
  def build_topology(cls, actor_wg_world_size, rollout_world_size, metadata): ...

  @abc.abstractmethod
  def init_process_group(self, **kwargs): ...

  @abc.abstractmethod
  def finalize(self): ...

  @abc.abstractmethod
  async def send_weights(self, weights, global_steps=None): ...

  @abc.abstractmethod
  async def receive_weights(self, global_steps=None): ...
