# SPDX-License-Identifier: Apache-2.0
"""The workers of an SGLang engine, each a process, and its trainers.

Where SGLang is installed, `sglang_real` has its own code for all of an update (`make frameworks-test`).
Else a stand-in has what reshard.sglang meets: the engine's three update calls with their rules, and in
each worker a model of fused and sharded parameters with SGLang's kind of load_weights(), called by
SGLang's rule for custom loaders. The trainers, torch, FSDP2 and transformers are real."""

import importlib
import importlib.util
import multiprocessing.connection
import os
import traceback
import types

import frameworks  # noqa: F401 - before transformers
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch_models import small_model

import reshard
from reshard import sglang

TP = 2
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


class Worker:
  """What the stand-in has in a worker process: a target model and a draft model."""

  def __init__(self, rank, _, folder, store):
    dist.init_process_group("gloo", store=dist.FileStore(str(store), TP), rank=rank, world_size=TP)
    self.rank, self.like = rank, small_model()
    self.model, self.draft = self.make(), self.make()

  def make(self):
    return Model(self.rank, self.like)

  def answer(self, said):
    """Calls the loader for both models, as SGLang does for an update from tensors."""
    path, values = said
    module, _, function = path.rpartition(".")  # SGLang's dynamic_import
    for model in (self.model, self.draft):
      named = [(name, torch.tensor(data, dtype=torch.uint8)) for name, data in values]
      getattr(importlib.import_module(module), function)(model, named)
    return ""

  def untouched(self):
    return not any(bool(parameter.any()) for parameter in self.draft.parameters())


class Model(nn.Module):
  """A rank of a Llama under tensor parallelism: fused projections, a padded vocabulary."""

  def __init__(self, rank, like):
    super().__init__()
    self.rank = rank
    config = like.config
    width, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    rows = {"q": heads * dim, "k": groups * dim, "v": groups * dim, 0: inner, 1: inner}
    self.sizes = {shard: size // TP for shard, size in rows.items()}
    self.vocabulary = -(-config.vocab_size // TP // 8) * 8
    shapes = {"model.embed_tokens.weight": (self.vocabulary, width), "lm_head.weight": (self.vocabulary, width)}
    for name, tensor in like.state_dict().items():
      prefix, _, last = name.rpartition("self_attn.")
      if "q_proj" in last:
        shapes[f"{prefix}self_attn.qkv_proj.weight"] = (sum(self.sizes[s] for s in "qkv"), width)
      elif "gate_proj" in name:
        shapes[name.replace("gate_proj", "gate_up_proj")] = (2 * inner // TP, width)
      elif "o_proj" in name or "down_proj" in name:
        shapes[name] = (width, tensor.shape[1] // TP)
      elif "norm" in name:
        shapes[name] = (width,)
    self.names = list(shapes)
    for i, shape in enumerate(shapes.values()):
      parameter = nn.Parameter(torch.zeros(shape, dtype=torch.bfloat16), requires_grad=False)
      parameter.weight_loader = self._sharded
      self.register_parameter(f"p{i}", parameter)

  def parameter(self, name):
    return getattr(self, f"p{self.names.index(name)}")

  def load_weights(self, weights):
    stacked = [("qkv_proj", f"{s}_proj", s) for s in "qkv"] + [("gate_up_proj", "gate_proj", 0), ("gate_up_proj", "up_proj", 1)]
    for name, loaded in weights:
      for fused, part, shard in stacked:
        if f".{part}." in name:
          parameter = self.parameter(name.replace(part, fused))
          parameter.weight_loader(parameter, loaded, name, shard)
          break
      else:
        parameter = self.parameter(name)
        parameter.weight_loader(parameter, loaded, name)

  def _sharded(self, parameter, loaded, name, shard=None):
    into = parameter.data
    if shard is not None:
      order = ["q", "k", "v"] if shard in ("q", "k", "v") else [0, 1]
      begin = sum(self.sizes[s] for s in order[: order.index(shard)])
      into = into.narrow(0, begin, self.sizes[shard])
      loaded = loaded.narrow(0, self.rank * self.sizes[shard], self.sizes[shard])
    elif "o_proj" in name or "down_proj" in name:
      loaded = loaded.narrow(1, self.rank * into.shape[1], into.shape[1])
    elif "embed" in name or "lm_head" in name:
      rows = min(self.vocabulary, loaded.shape[0] - self.rank * self.vocabulary)
      loaded = loaded.narrow(0, self.rank * self.vocabulary, rows)
      into = into.narrow(0, 0, rows)
    into.copy_(loaded)


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


def work(pipe, engine, rank, store, folder):
  """A worker process: answers the engine and the test."""
  torch.set_num_threads(1)
  if REAL:
    import sglang_real
  worker = (sglang_real.Worker if REAL else Worker)(rank, TP, folder, store)
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
          sglang._moves_experts = lambda moves=said == "balanced": moves
          pipe.send((True, None))
        elif said in ("asleep", "awake"):
          worker.model._buffers.pop("more", None)
          sglang.state.unmapped = lambda tensors, name="" if said == "awake" else "model.norm.weight": name
          pipe.send((True, None))
        elif said == "grown":
          worker.model.register_buffer("more", torch.zeros(1))
          pipe.send((True, None))
        elif said == "joined?":
          pipe.send((True, any(own._link is not None for own in sglang._workers.values())))
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
  state = types.SimpleNamespace(rank=rank, module=module, trainer=None, at=lambda _: None)
  state.engine = engine_of(engine, folder) if rank == 0 else None
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


def sent(state):
  """Bytes of this rank's last update."""
  return state.report.sent


def strangers(state):
  """What somebody else may send to the engine: nothing of it may reach the trainer that has joined."""
  client = sglang.EngineClient(state.engine)
  said = state.trainer._invitation.as_dict() | {"job": "another", "secret": "0123456789abcdef"}
  for more in ({"protocol": 2}, {"deadline": 1e9}, {"workers": "x"}, {}, {"ready": True}):
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


def calls(state):
  made, state.engine.calls = state.engine.calls, []
  return made


def is_sharded(state):
  return all(isinstance(p, DTensor) for p in state.module.parameters())


def close(state):
  state.trainer.close()
