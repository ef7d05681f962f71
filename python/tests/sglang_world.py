# SPDX-License-Identifier: Apache-2.0
"""Two trainers under FSDP2 and an SGLang engine of two workers, each a process, for tests."""

import multiprocessing

import sglang_process
import sglang_served
import torch
from frameworks import Workers
from ranks import TIMEOUT
from torch_models import small_model

#: By the names of requests: those of the trainer.
NAMES = {engine: key for key, (engine, _) in sglang_served.ADAPTERS.items()}


class World:
  """Two trainers under FSDP2, and an engine of two workers; or several such engines."""

  def __init__(self, folder, engines=1):
    config = small_model().config
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder / "model")
    context = multiprocessing.get_context("spawn")
    self.tests, pipes, self.workers = [], [[] for _ in range(engines)], []
    for rank in range(engines * sglang_process.TP):
      (test, mine), (handle, its) = context.Pipe(), context.Pipe()
      number, worker = divmod(rank, sglang_process.TP)
      arguments = (mine, its, worker, folder / f"engine-{number}", folder / "model")
      self.workers.append(context.Process(target=sglang_process.work, args=arguments, daemon=True))
      self.workers[-1].start()
      self.tests.append(test)
      pipes[number].append(handle)
    common = {"store": folder / "trainer", "folder": folder / "model"}
    options = [{"rank": rank, "engine": pipes if rank == 0 else None} | common for rank in (0, 1)]
    self.trainers = Workers("sglang_process", options)
    assert all(fine for fine, _ in map(self.answer, self.tests))

  def answer(self, pipe):
    assert pipe.poll(3 * TIMEOUT), "a worker of the engine hangs"
    return pipe.recv()

  def holds(self, whole):
    """Asserts what the workers hold, and in their own parameters."""
    for pipe in self.tests:
      pipe.send(whole)
    for fine, result in map(self.answer, self.tests):
      assert fine, result
      equal, all_of_them, same, filled = result
      assert equal == all_of_them and same and filled

  def behave(self, how):
    for pipe in self.tests:
      pipe.send(how)
    assert all(fine for fine, _ in map(self.answer, self.tests))

  def joined(self):
    """Whether each worker of the engine is in a trainer's group."""
    for pipe in self.tests:
      pipe.send("joined?")
    return [result for _, result in map(self.answer, self.tests)]

  def close(self):
    for pipe in self.tests:
      pipe.send(None)
    self.trainers.close()
    for process in self.workers:
      process.join(TIMEOUT)
      process.kill()


class Served:
  """A world whose engine serves adapters or draft models, too."""

  def __init__(self, world, root, kind="", adapters=("default",)):
    self.world, self.kind, self.root = world, kind, root
    self.adapters = {name: key for name, key in NAMES.items() if key in adapters}
    config = small_model().config
    for i, key in enumerate(self.adapters.values()):
      sglang_served.write(root / "old" / sglang_served.ADAPTERS[key][0], key,
                          sglang_served.values(sglang_served.factor_shapes(key, config), 1000 + i))  # fmt: skip
    zeros = {n: torch.zeros(s) for n, s in sglang_served.draft_shapes(kind, config).items()} if kind in sglang_served.DRAFTS else {}
    self.draft = [(n, tuple(t.shape), t.numpy().tobytes()) for n, t in zeros.items()]
    self.whole = [(n, tuple(p.shape), bytes(4 * p.numel())) for n, p in small_model().named_parameters()]
    self.folders = self.of("old")
    self.tell("serve", kind, self.folders)

  def of(self, name):
    return {engine: str(self.root / name / engine) for engine in self.adapters}

  def tell(self, *said):
    for pipe in self.world.tests:
      pipe.send(said)
    found = []
    for fine, result in map(self.world.answer, self.world.tests):
      assert fine, result
      found.append(result)
    return found

  def start(self, changed=None, **options):
    said = options, self.kind, tuple(self.adapters.values()), changed or {}
    return self.world.trainers.call([0, 1], "start_serving", *said)

  def refused(self, why, changed=None, kind=None, **options):
    kind = self.kind if kind is None else kind
    adapters = tuple(self.adapters.values()) or (() if kind else ("default",))
    self.world.trainers.ask([0, 1], "start_serving", options, kind, adapters, changed or {})
    answers = self.world.trainers.answers([0, 1])
    assert all(not fine and why in error[1] for fine, error in answers), answers

  def train(self, seed):
    whole, _ = self.world.trainers.call([0, 1], "train", seed)
    draft, _ = self.world.trainers.call([0, 1], "train_more", seed, str(self.root / str(seed)))
    return whole, draft, self.of(str(seed))

  def update(self):
    self.world.trainers.call([0, 1], "update")
    return sum(self.world.trainers.call([0, 1], "sent"))

  def holds(self):
    """Asserts what the workers hold: what SGLang loads of the same files."""
    for different, of in self.tell("differences", self.whole, self.draft, self.folders):
      assert of > 10 and not different, different

  def close(self):
    self.world.trainers.call([0, 1], "close")
    self.tell("serve", "", {})
