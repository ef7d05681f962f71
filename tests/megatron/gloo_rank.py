# SPDX-License-Identifier: Apache-2.0
"""One rank of torch.distributed over gloo with Megatron-Core's own process groups and modules."""

import contextlib
import itertools
import traceback
from functools import partial

import torch
import torch.distributed as dist
from building import build
from test_modules import MODELS, STATE, keys_of
from world import parallel_state

import reshard
from reshard.tracing._types import torch_dtype


@contextlib.contextmanager
def parallel(text):
  """Megatron-Core's parallel state of the notation `text`."""
  sizes = {STATE[k]: v for k, v in keys_of(text).items() if k in STATE}
  parallel_state.initialize_model_parallel(create_gloo_process_groups=False, **sizes)
  try:
    yield
  finally:
    parallel_state.destroy_model_parallel()


def _values(layout):
  """{name: values} of a layout's first rank, the same on every rank."""
  generator = torch.Generator().manual_seed(1)
  return {
    t.name: torch.randn(t.shape, generator=generator).to(torch_dtype(t.dtype.name.upper()))
    for t in layout.local(layout.ranks[0])
  }


def _refit(group, source, mine, target, theirs):
  with reshard.Session(
    group, source=source, source_tensors=mine, target=target, target_tensors=theirs, verify="always"
  ) as session:
    session.refit(1)


def through_modules(folder, name, texts):
  """Whole tensors on rank 0, into modules cut in one way, from these into the next, and back: equal?

  `folder`: of a checkpoint, whose names are used; None: Megatron's own. Returns what the first
  modules held, by local names, and the whole tensors.
  """
  me = dist.get_rank()
  model = None if folder is None else reshard.open_model(folder)
  layouts, tensors = [], []
  for text in texts:
    with parallel(text):
      modules = build(MODELS[name], text, padded=256)
      layouts.append(reshard.of_modules(modules, model))
      model = layouts[-1].model if model is None else model
      tensors.append(partial(reshard.module_tensors, modules))
  alone = reshard.layout("hf", layouts[0].model)
  values = _values(alone)
  back = {tensor: torch.zeros_like(value) for tensor, value in values.items()}
  stations = [(alone, values if me == 0 else None), *zip(layouts, tensors, strict=True), (alone, back if me == 0 else None)]
  with reshard.from_torch() as group:
    for (source, mine), (target, theirs) in itertools.pairwise(stations):
      _refit(group, source, mine, target, theirs)
  if me == 0:
    for tensor, value in back.items():
      assert torch.equal(value, values[tensor]), tensor
  return [{n: t.float() for n, t in held.items()} for held in (tensors[0](), values)]


def refit_of_modules(folder, name, text, engine):
  """A reshard.dtensor.Refit from modules, whose layout is that of of_modules(), to the layout of an engine."""
  from reshard import dtensor

  me = dist.get_rank()
  model = reshard.open_model(folder)
  with parallel(text):
    modules = build(MODELS[name], text, padded=256)
    layout = reshard.of_modules(modules, model)
  whole, target = reshard.layout("hf", model), reshard.layout(engine, model)
  values = _values(whole)
  with reshard.from_torch() as group:
    _refit(group, whole, values if me == 0 else None, layout, reshard.module_tensors(modules))
  wanted = {t.name: torch.zeros(t.shape, dtype=torch_dtype(t.dtype.name.upper())) for t in target.local(me)}
  served = {n: torch.zeros_like(t) for n, t in wanted.items()}
  source = modules if len(modules) == 1 else reshard.module_tensors(modules)  # "model0." is before names of chunks
  with dtensor.Refit(source, served, model=model, source_layout=layout, target_layout=target, verify="always") as refit:
    refit()
    for tensor in reshard.module_tensors(modules).values():
      tensor.mul_(2)
    refit()
  with reshard.from_torch() as group:
    twice = {n: v * 2 for n, v in values.items()}
    _refit(group, whole, twice if me == 0 else None, target, wanted)
  for tensor, value in wanted.items():
    assert torch.equal(served[tensor], value) and value.any(), tensor
  return len(wanted)


def bridged(folder, name, bridge):
  """How the layout by a bridge differs from that by the family; and what is raised for what is no bridge.

  bridge  () -> of Megatron-Bridge
  """
  model = reshard.open_model(folder)
  with parallel("tp=2"):
    modules = build(MODELS[name], "tp=2")
    found = reshard.of_modules(modules, model, bridge=bridge())
    differences = [str(difference) for difference in reshard.diff(found, reshard.of_modules(modules, model))]
    said = []
    for keywords in ({"model": model, "bridge": 3}, {"bridge": bridge()}, {"model": model, "bridge": bridge(), "full": found}):
      try:
        reshard.of_modules(modules, **keywords)
      except reshard.Error as error:
        said.append(f"{type(error).__name__}: {error}")
  return differences, said


def refused(name):
  """What is raised on this rank if only rank 1 has something wrong, and without modules."""
  said = []
  with parallel("tp=2"):
    modules = build(MODELS[name], "tp=2")
    for given in (modules if dist.get_rank() == 0 else [3], []):
      try:
        reshard.of_modules(given)
      except reshard.Error as error:
        said.append(f"{type(error).__name__}: {error}")
  return said


def serve(pipe, rank, size, store, functions=None):
  """Runs what the pipe names, until it is None: (function, arguments) -> (True, result) or (False, text).

  `functions`: by name; None: those of this file.
  """
  dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
  while (command := pipe.recv()) is not None:
    name, arguments = command
    try:
      pipe.send((True, (functions or globals())[name](*arguments)))
    except Exception:
      pipe.send((False, traceback.format_exc()))
    _leave_groups()
  dist.destroy_process_group()


def _leave_groups():
  """Destroys all process groups but the first: each has a thread, and Megatron makes some forty for a model."""
  for group in list(dist.distributed_c10d._world.pg_map):
    if group is not dist.group.WORLD:
      dist.destroy_process_group(group)
