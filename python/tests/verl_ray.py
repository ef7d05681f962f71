# SPDX-License-Identifier: Apache-2.0
"""verl's own manager, worker groups and worker classes as Ray actors, around the engines of verl_process.

Only what needs a GPU is left out: the constructors of the workers, and the servers of the replicas."""

import types

import ray
import verl_process
from verl.checkpoint_engine.base import CheckpointEngineManager, CheckpointEngineWorker
from verl.single_controller.ray import RayClassWithInitArgs, RayWorkerGroup
from verl.workers.config import CheckpointEngineConfig
from verl.workers.engine_workers import ActorRolloutRefWorker


class Actor(ActorRolloutRefWorker):
  """verl's worker of an actor, with a small FSDP2 model on the host."""

  def __init__(self, rank, store, bucket, options, backend):
    self.state = verl_process.make("actor", rank, store, bucket, options)
    self.actor = types.SimpleNamespace(engine=self.state.engine)
    self.checkpoint_engine = self.state.checkpoint
    engine = types.SimpleNamespace(backend=backend)
    self.config = types.SimpleNamespace(rollout=types.SimpleNamespace(checkpoint_engine=engine))

  def train(self, seed):
    return verl_process.train(self.state, seed)


class Rollout(CheckpointEngineWorker):
  """verl's worker beside an inference engine, with an adapter that keeps what it gets."""

  def __init__(self, rank, store, bucket, options, backend):
    self.state = verl_process.make("rollout", rank, store, bucket, options)
    self.checkpoint_engine, self.server_adapter = self.state.checkpoint, verl_process.Adapter()

  def received(self):
    return self.server_adapter.packed(), self.server_adapter.step


class Replica:
  """A rollout's server, whose calls are noted."""

  def __init__(self, workers):
    self.workers, self.calls = workers, []

  def __getattr__(self, name):
    async def call(*_, **__):
      self.calls.append(name)

    return call


class Trainer:
  """Two actors and two replicas of one worker each."""

  def __init__(self, store, backend, module, bucket):
    common = (store, bucket, {"timeout": 60.0}, backend)
    actor, rollout = ray.remote(Actor), ray.remote(Rollout)
    self.actors = [actor.options(num_cpus=0).remote(rank, *common) for rank in range(2)]
    self.rollouts = [rollout.options(num_cpus=0).remote(rank, *common) for rank in range(2)]
    group = RayWorkerGroup(worker_handles=self.actors, ray_cls_with_init=RayClassWithInitArgs(cls=actor))
    self.replicas = [Replica([worker]) for worker in self.rollouts]
    config = CheckpointEngineConfig(backend=backend, custom_backend_module=module)
    self.manager = CheckpointEngineManager(config=config, actor_wg=group, replicas=list(self.replicas))

  def step(self, step):
    """Trains, updates, and returns what the actors have and each rollout got."""
    trained = ray.get([actor.train.remote(step) for actor in self.actors])[0]
    self.manager.update_weights(global_steps=step)
    used = [worker for replica in self.manager.replicas for worker in replica.workers]
    return trained, ray.get([worker.received.remote() for worker in used])

  def close(self):
    for worker in self.actors + self.rollouts:
      ray.kill(worker)
