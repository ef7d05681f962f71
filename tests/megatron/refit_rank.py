# SPDX-License-Identifier: Apache-2.0
"""One rank with two models of Megatron-Core's own modules, for test_refit.py.

Megatron's own copy service asks for CUDA streams, which are replaced by ones that do nothing: its
planner, its executor and its bytes over gloo are real.
"""

import zlib

import gloo_rank
import torch
import torch.distributed as dist
from building import build
from test_modules import MODELS

# After building, which lets it be imported without a GPU.
from megatron.core import resharding
from megatron.core.process_groups_config import ProcessGroupCollection

import reshard.megatron
from reshard.live._modules import held_by, module_tensors
from reshard.tracing._types import torch_dtype


class _Stream:
  """Stands for a CUDA stream."""

  def wait_stream(self, _):
    pass


torch.cuda.Stream = _Stream
torch.cuda.current_stream = lambda: _Stream()


def models(name, *texts):
  """A model for each notation; each knows its process groups."""
  built = []
  for text in texts:
    with gloo_rank._parallel(text):
      modules = build(MODELS[name], text, padded=256)
      for module in modules:
        module.pg_collection = ProcessGroupCollection.use_mpu_process_groups()
      built.append(modules)
  return built


def values_of(held, step):
  """What a rank holds of a full tensor whose values follow from its name."""
  generator = torch.Generator().manual_seed(zlib.crc32(f"{step} {held.whole}".encode()))
  values = torch.randn(held.shape, generator=generator).to(torch_dtype(held.dtype))
  for dim, runs in enumerate(held.runs):
    index = torch.cat([torch.arange(begin, end) for begin, end in runs])
    values = values.index_select(dim, index)
  return values


def fill(modules, step):
  for held, tensor in zip(held_by(modules), module_tensors(modules).values(), strict=True):
    tensor.copy_(values_of(held, step))


def wrong(modules, step):
  """The names of tensors that do not hold what `fill()` gave the source."""
  tensors = module_tensors(modules)
  expected = {held.name: values_of(held, step) for held in held_by(modules)}
  assert len(expected) > 5
  return [name for name, value in expected.items() if not torch.equal(value.to(tensors[name].dtype), tensors[name])]


def clear(modules):
  for tensor in module_tensors(modules).values():
    tensor.zero_()


def drop_in(name, source, target, method, sources, targets):
  """Two refits by swap_model_weights(), between models on some ranks only. Returns what is wrong."""
  trainer, engine = models(name, source, target)
  me, found = dist.get_rank(), []
  for step in (1, 2):
    fill(trainer, step)
    clear(engine)
    both = (trainer if me in sources else None, engine if me in targets else None)
    reshard.megatron.swap_model_weights(*both, method)
    found += wrong(engine, step) if me in targets else []
  return found


def pools(name):
  """Two targets in two pools, on ranks 2 and 3, from a source on ranks 0 and 1."""
  trainer, engine = models(name, "tp=2", "tp=1")
  me, found = dist.get_rank(), []
  for step in (1, 2):
    fill(trainer, step)
    clear(engine)
    both = (trainer if me < 2 else None, engine if me >= 2 else None)
    reshard.megatron.swap_model_weights(*both, "gloo", None, 0, 2, None, 2, 1 if me == 3 else 0)
    found += wrong(engine, step) if me >= 2 else []
  return found


def as_megatron_does(name, source, target):
  """Both ways in, and Megatron's own service, on the same models; where they differ."""
  trainer, engine = models(name, source, target)
  fill(trainer, 1)
  results = {}
  service = reshard.megatron.CopyService()
  for way in ("megatron", "service", "service again", "drop-in", "operations"):
    clear(engine)
    if way == "megatron":
      resharding.swap_model_weights(trainer, engine, "gloo")
    elif way.startswith("service"):
      resharding.reshard_model_weights(trainer, engine, service=service)
    elif way == "drop-in":
      reshard.megatron.swap_model_weights(trainer, engine, "gloo")
    else:  # our plan, through Megatron's service
      reshard.megatron.swap_model_weights(trainer, engine, resharding.get_or_create_service("gloo"))
    results[way] = {n: t.clone() for n, t in dict(engine[0].named_parameters()).items()}
  service.close()
  first = results.pop("megatron")
  assert first
  assert any(t.any() for t in first.values())
  return [
    f"{way}: {name}" for way, held in results.items() for name in first if not torch.equal(first[name], held[name])
  ]


def serve(*arguments):
  gloo_rank.serve(*arguments, functions=globals())
