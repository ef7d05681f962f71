# SPDX-License-Identifier: Apache-2.0
"""The workers of an SGLang engine, each a process, and its trainers.

Where SGLang is installed, `sglang_real` has its own code for all of an update (`make frameworks-test`).
Else a stand-in has what reshard.sglang meets: the engine's three update calls with their rules, and in
each worker a model of fused and sharded parameters with SGLang's kind of load_weights(), called by
SGLang's rule for custom loaders. The trainers, torch, FSDP2 and transformers are real."""

import importlib.util
import multiprocessing.connection
import os
import traceback
import types

import frameworks  # noqa: F401 - before transformers
import sglang_served
import sglang_standins
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch_models import small_model

import reshard
from reshard import sglang

TP = sglang_standins.TP
REAL = importlib.util.find_spec("sglang") is not None


class Recorded:
  """Notes the calls of an engine."""

  def begin_weight_update(self, selector="all"):
    self.calls.append(("begin", selector))
    return super().begin_weight_update(selector)

  def end_weight_update(self):
    self.calls.append(("end",))
    return super().end_weight_update()

  def update_weights_from_tensor(self, named_tensors, load_format=None, flush_cache=True):
    self.calls.append((named_tensors[0][0], flush_cache))
    return super().update_weights_from_tensor(named_tensors, load_format, flush_cache)


class Engine:
  """The stand-in for sglang.Engine: forwards each call to its workers."""

  def __init__(self, pipes, _):
    self.pipes, self.open = pipes, False
    self.server_args = types.SimpleNamespace(tp_size=len(pipes), pp_size=1, dp_size=1)

  def begin_weight_update(self, selector="all"):
    if self.open:
      return False, "a weight-update session is already open"
    self.open = True
    return True, "Success"

  def end_weight_update(self):
    if not self.open:
      return False, "no weight-update session is open"
    self.open = False
    return True, "Success"

  def update_weights_from_tensor(self, named_tensors, load_format=None, flush_cache=True):
    if not self.open:
      return False, "update_weights_from_tensor must run in a session"
    for pipe in self.pipes:
      pipe.send((load_format, [(name, tensor.tolist()) for name, tensor in named_tensors]))
    failed = [answer for answer in [pipe.recv() for pipe in self.pipes] if answer]
    return (False, failed[0]) if failed else (True, "Success")


def engine_of(pipes, folder):
  """An engine whose calls are noted: SGLang's if it is installed."""
  if REAL:
    import sglang_real
  made = type("RecordedEngine", (Recorded, sglang_real.Engine if REAL else Engine), {})(pipes, folder)
  made.calls = []
  return made


def behave(model, how):
  """Has a model load what cannot be followed ("odd"), or as it did ("")."""
  vars(model).pop("load_weights", None)
  if how == "odd":
    load = model.load_weights
    model.load_weights = lambda weights: load([(n, t * float(t.flatten()[0] * 0 + 1)) for n, t in weights])


def holds(worker, other, places, said):
  """How many tensors are equal to what the model's loader makes of these, and of how many; and what must hold."""
  whole = {n: torch.frombuffer(bytearray(b), dtype=torch.float32).view(s) for n, s, b in said}
  other.load_weights(whole.items())
  pairs = list(zip(worker.model.parameters(), other.parameters(), strict=True))
  equal = [a for a, b in pairs if torch.equal(a, b)]
  same = places == [p.data_ptr() for p in worker.model.parameters()]
  return len(equal), len(pairs), same and worker.untouched(), all(bool(b.any()) for _, b in pairs)


def hurt(worker, how):
  """Has the second worker's SGLang fail at a place of an update."""
  if how == "unload":
    worker.manager.lora_refs.clear()
  elif how == "move" and worker.rank == 1:
    worker.manager.memory_pool.load_lora_weight_to_buffer = raises
  elif how == "make" and worker.rank == 1:
    for adapter in worker.manager.loras.values():
      type(adapter)._normalize_weights, type(adapter).kept = raises, type(adapter)._normalize_weights
  elif how == "heal" and worker.rank == 1:
    for kind in {type(adapter) for adapter in worker.manager.loras.values()}:
      kind._normalize_weights = kind.kept
  elif how == "hot":  # as --speculative-token-map leaves the head of an EAGLE draft model
    head = dict(worker.drafts[0].named_modules()).get("lm_head", worker.drafts[0])
    name = "weight" if hasattr(head, "weight") else "head"
    setattr(head, name, nn.Parameter(getattr(head, name).detach()[:8].clone(), requires_grad=False))
  elif how == "odd draft":
    behave(worker.drafts[0], "odd")


def raises(*_, **__):
  raise RuntimeError("no memory is left")


def tell(worker, what, *said):
  """What a test asks for, beside the plain engine."""
  if what == "serve":
    return worker.serve(*said)
  if what == "hurt":
    return hurt(worker, *said)
  whole, draft, folders = said
  named = [{n: torch.frombuffer(bytearray(b), dtype=torch.float32).view(s) for n, s, b in x} for x in (whole, draft)]
  return sglang_served.differences(worker, *named, folders)


def work(pipe, engine, rank, store, folder):
  """A worker process: answers the engine and the test."""
  torch.set_num_threads(1)
  if REAL:
    import sglang_real
  worker = (sglang_real.Worker if REAL else sglang_standins.Worker)(rank, TP, folder, store)
  other = worker.make()
  places = [p.data_ptr() for p in worker.model.parameters()]
  pipe.send((True, None))
  talking = [pipe, engine]
  while True:
    for ready in multiprocessing.connection.wait(talking):
      try:
        said = ready.recv()
      except EOFError:  # the trainers have gone
        talking.remove(ready)
        continue
      if said is None:
        dist.destroy_process_group()
        return
      try:
        if ready is engine:
          engine.send(worker.answer(said))
        elif said in ("balanced", "fixed"):
          sglang.models._moves_experts = lambda moves=said == "balanced": moves
          pipe.send((True, None))
        elif said in ("asleep", "awake"):
          worker.model._buffers.pop("more", None)
          sglang.worker.state.unmapped = lambda tensors, name="" if said == "awake" else "model.norm.weight": name
          pipe.send((True, None))
        elif said == "grown":
          worker.model.register_buffer("more", torch.zeros(1))
          pipe.send((True, None))
        elif said == "joined?":
          pipe.send((True, any(own._link is not None for own in sglang.worker._workers.values())))
        elif isinstance(said, tuple):
          pipe.send((True, tell(worker, *said)))
        elif isinstance(said, str):
          behave(worker.model, said)
          pipe.send((True, None))
        else:
          pipe.send((True, holds(worker, other, places, said)))
      except BaseException:
        ready.send((False, traceback.format_exc()) if ready is pipe else traceback.format_exc())


def make(rank, store, engine, folder):
  """A trainer."""
  torch.set_num_threads(1)
  dist.init_process_group("gloo", store=dist.FileStore(str(store), 2), rank=rank, world_size=2)
  module = small_model().float()
  mesh = init_device_mesh("cpu", (2,))
  for layer in module.model.layers:
    fully_shard(layer, mesh=mesh)
  fully_shard(module, mesh=mesh)
  state = types.SimpleNamespace(rank=rank, module=module, mesh=mesh, more={}, trainer=None, at=lambda _: None)
  state.engine = None
  if rank == 0:
    state.engine = [engine_of(pipes, folder) for pipes in engine]
    if len(engine) == 1:
      (state.engine,) = state.engine
  return state


def end(state):
  if state.trainer is not None:
    state.trainer.close()
  dist.destroy_process_group()


def train(state, seed):
  with torch.no_grad():
    for i, (_, tensor) in enumerate(sorted(state.module.named_parameters())):
      generator = torch.Generator().manual_seed(1000 * seed + 10 * i + state.rank)
      local = tensor.to_local()
      local.copy_(torch.randn(local.shape, generator=generator))
  whole = {n: p.full_tensor().detach() for n, p in state.module.named_parameters()}
  return [(n, tuple(t.shape), t.numpy().tobytes()) for n, t in whole.items()]


def start(state, options, other=None):
  """Joins the engine; with another name for one tensor, if that is asked for."""
  from reshard.sglang import Trainer

  tensors = {n + ("x" if n == other else ""): p for n, p in state.module.named_parameters()}
  options = {"engine": state.engine, "deadline": 30.0, "on_phase": lambda phase: state.at(phase)} | options
  state.trainer = Trainer(reshard.of_dtensors(tensors), tensors, rank=state.rank, size=2, **options)
  return state.trainer.version


def start_serving(state, options, kind, adapters, changed):
  """Joins with a draft model of a kind and adapters, as DTensors.

  changed  {name: another shape, or None to leave it out}, of the factors and of the draft model; configs: {key: config}
  """
  from reshard.sglang import Adapter, Draft, Trainer

  config = state.module.config
  shapes = {key: sglang_served.factor_shapes(key, config) for key in adapters}
  shapes["draft"] = sglang_served.draft_shapes(kind, config) if kind else {}
  configs = changed.pop("configs", {})
  for name, shape in changed.items():
    (key,) = [key for key in shapes if f".{key}" in name or (key == "draft" and name.startswith("draft:"))]
    shapes[key].pop(name.removeprefix("draft:"), None)
    if shape is not None:
      shapes[key][name.removeprefix("draft:")] = shape
  state.more = {
    key: {n: distribute_tensor(torch.zeros(s), state.mesh, [Shard(0)]) for n, s in held.items()} for key, held in shapes.items()
  }
  train_more(state, 0)
  tensors = dict(state.module.named_parameters())
  for key in adapters:
    tensors |= state.more[key]
  if kind:
    options |= {"draft": Draft(reshard.of_dtensors(state.more["draft"]), state.more["draft"])}
  if adapters:
    said = {key: configs.get(key, sglang_served.ADAPTERS[key][1]) for key in adapters}
    options |= {"adapters": {key: Adapter(sglang_served.ADAPTERS[key][0], said[key]) for key in adapters}}
  state.trainer = Trainer(
    reshard.of_dtensors(tensors), tensors, engine=state.engine, rank=state.rank, size=2, deadline=30.0, verify=True,
    on_phase=lambda phase: state.at(phase), **options,
  )  # fmt: skip
  return state.trainer.version


def train_more(state, seed, root=None):
  """New values of the factors and the draft model; rank 0 writes the adapters into folders. The draft model's, whole."""
  whole = {}
  for i, (key, held) in enumerate(state.more.items()):
    whole[key] = sglang_served.values({n: tuple(t.shape) for n, t in held.items()}, 100 * seed + i)
    for name, tensor in held.items():
      tensor.to_local().copy_(distribute_tensor(whole[key][name], state.mesh, [Shard(0)]).to_local())
    if root is not None and state.rank == 0 and key in sglang_served.ADAPTERS:
      sglang_served.write(f"{root}/{sglang_served.ADAPTERS[key][0]}", key, whole[key])
  dist.barrier()
  return [(n, tuple(t.shape), t.numpy().tobytes()) for n, t in whole.get("draft", {}).items()]


def fails_at(state, phase):
  """Has the next update of this rank fail in a phase; None: no more."""

  def at(now):
    if now == phase:
      raise RuntimeError("the trainer has had enough")

  state.at = at


def start_merging(state):
  """Joins with a LoRA adapter of one weight, whose factors both ranks have."""
  from reshard.sglang import Trainer

  module = "model.layers.0.self_attn.q_proj"
  rows, columns = state.module.get_parameter(f"{module}.weight").shape
  random = torch.Generator().manual_seed(5)
  state.factors = {
    # Whole numbers: their products are exact, however they are summed.
    f"{module}.lora_A.default.weight": torch.randint(-3, 4, (2, columns), generator=random).float(),
    f"{module}.lora_B.default.weight": torch.randint(-3, 4, (rows, 2), generator=random).float(),
  }
  tensors = {**dict(state.module.named_parameters()), **state.factors}
  state.trainer = Trainer(
    reshard.of_dtensors(tensors), tensors, engine=state.engine, deadline=30.0, rank=state.rank, size=2,
    merge={"default": {"lora_alpha": 4}},
  )  # fmt: skip
  return state.trainer.version


def merged(state):
  """What a merged trainer sends, whole."""
  whole = {n: p.full_tensor().detach() for n, p in state.module.named_parameters()}
  a, b = state.factors.values()
  name = next(iter(state.factors)).replace("lora_A.default.", "")
  whole[name] = whole[name] + 2 * (b @ a)
  return [(n, tuple(t.shape), t.numpy().tobytes()) for n, t in whole.items()]


def start_alone(state):
  """Rank 0 goes on without the other, with whole tensors of its own."""
  from reshard.sglang import Trainer

  state.whole = {n: torch.full(tuple(p.shape), 0.5) for n, p in state.module.named_parameters()}
  layout = reshard.of_dtensors(state.whole, group=reshard.local(1)[0])
  state.trainer = Trainer(layout, state.whole, engine=state.engine, deadline=30.0)
  state.trainer.update()
  return [(n, tuple(t.shape), t.numpy().tobytes()) for n, t in state.whole.items()], state.trainer.version


def update(state, version=None):
  state.report = state.trainer.update(version)
  return state.trainer.version


def begin(state):
  """Begins an update in the background; whether sources were free at once. They are when it returns."""
  state.pending = state.trainer.update_async()
  free = state.pending.sources_free()
  assert state.pending.wait_sources_free(30)
  for refused in (state.trainer.update, state.trainer.update_async):
    try:
      refused()
      raise AssertionError("another update began")
    except reshard.InvalidArgumentError as error:
      assert "an update is in the background" in str(error)
  return free


def finish(state):
  """Has the engine take what has arrived."""
  assert state.pending.wait_arrived(30)
  state.report = state.pending.result()
  assert state.pending.result() is state.report
  return state.trainer.version


def sent(state):
  """Bytes of this rank's last update."""
  return state.report.sent


def strangers(state):
  """What somebody else may send to the engine: nothing of it may reach the trainer that has joined."""
  client = sglang.EngineClient(state.engine)
  said = state.trainer._invitation.as_dict() | {"job": "another", "secret": "0123456789abcdef"}
  for more in ({"protocol": 2}, {"deadline": 1e9}, {"engines": "x"}, {}, {"ready": True}):
    client.init_weight_transfer_engine(said | more)
  client.start_weight_update()
  client.update_weights({"version": 1000, "job": "another"})
  client.update_weights({"version": 1000})
  client.finish_weight_update()
  client.leave("another")
  calls(state)


def leave_open(state):
  """As a trainer that was killed in an update leaves the engine."""
  return state.engine.begin_weight_update("target")


def dies(state):
  """Takes part in an update until bytes move."""

  def at(phase):
    if phase == "transfer":
      os._exit(9)

  state.at = at
  state.trainer.update()


def page(state, code):
  """Runs the program of the page; what the trainer has in the end."""
  trained = []
  given = {
    "reshard": reshard, "module": state.module, "engine": state.engine, "rank": state.rank, "size": 2, "steps": 2,
    "train": lambda: trained.append(train(state, len(trained))),
  }  # fmt: skip
  exec(code, given)
  given["trainer"].close()
  return trained[-1]


def at(state):
  return state.trainer.version


def told(state):
  """The version that the engine was told, of rank 0; None if it is a stand-in."""
  if not REAL:
    return None
  from sglang.srt.runtime_context import get_serving

  return get_serving().weight_version


def page_of_adapters(state, code):
  """Runs the second program of the page, with what start_serving() made."""
  tensors = dict(state.module.named_parameters()) | state.more["default"]
  draft = state.more["draft"]
  given = {
    "reshard": reshard, "layout": reshard.of_dtensors(tensors), "tensors": tensors, "engine": state.engine, "rank": state.rank,
    "size": 2, "config": sglang_served.ADAPTERS["default"][1], "draft_layout": reshard.of_dtensors(draft), "draft_tensors": draft,
  }  # fmt: skip
  exec(code, given)
  state.trainer = given["trainer"]


def calls(state):
  made, state.engine.calls = state.engine.calls, []
  return made


def is_sharded(state):
  return all(isinstance(p, DTensor) for p in state.module.parameters())


def close(state):
  state.trainer.close()
