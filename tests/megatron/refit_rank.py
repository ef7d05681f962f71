# SPDX-License-Identifier: Apache-2.0
"""One rank with two models of Megatron-Core's own modules, for test_refit.py.

Megatron's own copy service asks for CUDA streams and pinned memory. Without a GPU they are replaced by ones that
do nothing and by plain memory: its planner, its executor and its bytes over gloo are real.
"""

import contextlib
import datetime
import inspect
import zlib
from functools import partial

import gloo_rank
import torch
import torch.distributed as dist
from building import build
from test_modules import MODELS

# After building, which lets it be imported without a GPU.
from megatron.core import resharding
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.resharding import refit
from megatron.core.transformer.moe.experts import SequentialMLP

import reshard.megatron
from reshard.live._modules import held_by, module_tensors
from reshard.tracing._types import torch_dtype


class _Stream:
  """Stands for a CUDA stream."""

  def wait_stream(self, _):
    pass

  def synchronize(self):
    pass


_empty = torch.empty


def _plain_empty(*arguments, pin_memory=False, **keys):
  return _empty(*arguments, **keys)


if not torch.cuda.is_available():
  torch.empty = _plain_empty
  torch.cuda.Stream = _Stream
  torch.cuda.current_stream = lambda: _Stream()
  torch.cuda.stream = lambda _: contextlib.nullcontext()
  torch.cuda.synchronize = lambda: None

#: What Megatron's own calls take, by release.
TAKES = inspect.signature(refit.swap_model_weights).parameters
TAKES_NONE, TAKES_POOLS = "group" in TAKES, "num_dst_pools" in TAKES  # from 0.17, 0.19
#: Whether they move persistent buffers, from 0.18.
MOVES_BUFFERS = hasattr(resharding.utils, "named_persistent_buffers")
#: Ways in by its calls, with its service or reshard's.
MEGATRONS = ("megatron", "service")


def models(name, *texts, padded=256):
  """A model for each notation; each knows its process groups. padded: rows of the vocabulary."""
  built = []
  for text in texts:
    with gloo_rank.parallel(text):
      modules = build(MODELS[name], text, padded=padded)
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
  held = {name: tensors[name].cpu() for name in expected}
  return [name for name, value in expected.items() if not torch.equal(value.to(held[name].dtype), held[name])]


def wrong_by(way, modules, step):
  """wrong(), without the buffers that a release of Megatron does not move, with the way in before each."""
  left = set() if MOVES_BUFFERS or not way.startswith(MEGATRONS) else dict(modules[0].named_buffers())
  return [f"{way}: {name}" for name in wrong(modules, step) if name not in left]


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


def unusable(method):
  """The error of a refit by a backend that cannot be used."""
  return raised(reshard.megatron.swap_model_weights, *models("llama", "tp=2", "tp=1"), method)


def pools(name, way):
  """Two targets in two pools, on ranks 2 and 3, from a source on ranks 0 and 1.

  way  "drop-in", or "service": Megatron's own calls with reshard's service. None where these lack pools
  """
  if way == "service" and not TAKES_POOLS:
    return None
  trainer, engine = models(name, "tp=2", "tp=1")
  me, found = dist.get_rank(), []
  both, pool = (trainer if me < 2 else None, engine if me >= 2 else None), 1 if me == 3 else 0
  calls, service = refit, reshard.megatron.CopyService()
  if way == "drop-in":
    calls, service = reshard.megatron, "gloo"
    calls.prepare_swap_model_weights(*both, num_dst_pools=2, dst_pool_index=pool)
  for step in (1, 2):
    fill(trainer, step)
    clear(engine)
    calls.swap_model_weights(*both, service, None, 0, 0, None, 2, pool)
    found += wrong(engine, step) if me >= 2 else []
  return found


def group_experts(modules):
  """Renames experts as Transformer Engine's grouped layers do, which need a GPU: weight0, weight1, ...

  Only such names are experts to Megatron's planner.
  """
  for part in [part for module in modules for part in module.modules() if isinstance(part, SequentialMLP)]:
    experts = part._modules.pop("local_experts")
    for kind in ("linear_fc1", "linear_fc2"):
      part.add_module(kind, torch.nn.Module())
      for number, expert in enumerate(experts):
        part._modules[kind].register_parameter(f"weight{number}", expert._modules[kind].weight)


def as_megatron_does(name, source, target, sources=None, targets=None):
  """Both ways in, and Megatron's own service, on the same models; what is not as its planner and service
  deliver it, or not as the full tensors are.

  Before 0.17 Megatron's calls need both models on every rank.
  """
  trainer, engine = models(name, source, target)
  for modules in (trainer, engine):
    group_experts(modules)
  everywhere = sources is None or len(sources) == len(targets) == dist.get_world_size()
  has_source, has_target = (ranks is None or dist.get_rank() in ranks for ranks in (sources, targets))
  both = (trainer if has_source else None, engine if has_target else None)
  fill(trainer, 1)
  results, found = {}, []
  service = reshard.megatron.CopyService()
  ways = ["megatron", "service", "service again", "drop-in", "operations"]
  for way in ways if everywhere or TAKES_NONE else ways[3:]:
    clear(engine)
    if way == "megatron":
      resharding.swap_model_weights(*both, "gloo")
    elif way.startswith("service"):
      resharding.reshard_model_weights(*both, service=service)
    elif way == "drop-in":
      reshard.megatron.swap_model_weights(*both, "gloo")
    else:  # our plan, through Megatron's service
      reshard.megatron.swap_model_weights(*both, resharding.get_or_create_service("gloo"))
    results[way] = {n: t.clone() for n, t in engine[0].named_parameters()}
    found += wrong_by(way, engine, 1) if has_target else []
  service.close()
  refit.clear_service_cache()  # whose process group ends with this call
  getattr(refit, "clear_plan_cache", lambda: None)()
  first = next(iter(results.values()))
  compared = [n for n in first if f"{ways[0]}: {n}" not in found]
  for way, tensors in results.items():
    found += [f"{way}, unlike {ways[0]}: {n}" for n in compared if not torch.equal(first[n], tensors[n])]
  return found


def mamba_parts():
  """as_megatron_does() between tensor-parallel sizes of Mamba; and whether its parameters say their parts."""
  (modules,) = models("nemotron", "tp=2")
  says = any(hasattr(parameter, "partition_sizes") for parameter in modules[0].parameters())
  return as_megatron_does("nemotron", "pp=2", "tp=2"), says


class Scaled:
  """A transform written against Megatron's interface: weights of norms travel as FP32, doubled."""

  def __init__(self, modules):
    self.tensors = {} if modules is None else module_tensors(modules)
    self.finished = []

  def should_transform(self, param_name):
    return "layernorm" in param_name

  def prepare_send(self, param_name, src_slice, src_param):
    return [src_param[src_slice].float() * 2, torch.ones(3, device=src_param.device)]

  def prepare_recv(self, param_name, dst_slice):
    target = self.tensors[param_name]
    return [torch.empty(shape, device=target.device) for shape in (target[dst_slice].shape, (3,))]

  def finalize_recv(self, param_name, dst_slice, recv_buffers):
    values, ones = recv_buffers
    assert torch.equal(ones, torch.ones_like(ones))
    self.tensors[param_name][dst_slice] = (values / 2).to(torch.bfloat16)
    self.finished.append(param_name)


def transformed(name, source, target):
  """A refit with a transform on all ranks; what is wrong, and how many slices it finished."""
  trainer, engine = models(name, source, target)
  fill(trainer, 1)
  clear(engine)
  transform = Scaled(engine)
  reshard.megatron.swap_model_weights(trainer, engine, "gloo", transform=transform)
  return wrong(engine, 1), len(transform.finished)


def buffers():
  """Biases of experts, FP32 in the trainer and BF16 in the engine: dtype, values, and whether they are kept."""
  trainer, engine = models("deepseek", "tp=2", "ep=2")
  for part in engine[0].modules():
    if hasattr(part, "expert_bias"):
      part._buffers["expert_bias"] = part.expert_bias.bfloat16()
  found, kept = [], []
  for step in (1, 2):
    fill(trainer, step)
    reshard.megatron.swap_model_weights(trainer, engine, "gloo")
    found += wrong(engine, step)
    kept.append([t.data_ptr() for _, t in engine[0].named_buffers()])
  dtypes = {str(t.dtype) for n, t in engine[0].named_buffers() if n.endswith("expert_bias")}
  return found, dtypes, kept[0] == kept[1]


def replaced():
  """One rank's target is another model at the second call, and its caches are cleared at the third."""
  trainer, engine, other = models("llama", "tp=2", "pp=2", "pp=2")
  found = []
  for step in (1, 2, 3):
    fill(trainer, step)
    used = other if step == 2 and dist.get_rank() == 1 else engine
    if step == 3 and dist.get_rank() == 2:
      reshard.megatron.clear_all_caches()
    clear(used)
    reshard.megatron.swap_model_weights(trainer, used, "gloo")
    found += wrong(used, step)
  return found


def raised(function, *arguments, **keys):
  try:
    function(*arguments, **keys)
  except (reshard.Error, TypeError) as error:
    return f"{type(error).__name__}: {error}"
  return ""


def refused():
  """What is said if something is wrong on rank 1; then the calls still work."""
  trainer, engine, other = models("llama", "tp=2", "tp=1", "tp=1")
  me, swap = dist.get_rank(), reshard.megatron.swap_model_weights
  said = [raised(swap, [3] if me == 1 else trainer, engine, "gloo")]
  said.append(raised(swap, trainer, engine, 3))
  said.append(raised(swap, None, engine, "gloo"))
  other[0].decoder.layers[0].register_buffer("unknown", torch.ones(2))
  said.append(raised(swap, trainer, other if me == 1 else engine, "gloo"))
  (wide,) = models("llama", "tp=1", padded=384)
  said.append(raised(swap, trainer, wide, "gloo"))
  fill(trainer, 1)
  swap(trainer, engine, "gloo")
  return said, wrong(engine, 1)


def refused_arguments():
  """What is said of arguments that are wrong on rank 1 only; then the calls still work."""
  trainer, engine = models("llama", "tp=2", "tp=1")
  wrong_on_1 = dist.get_rank() == 1
  swap, prepare = reshard.megatron.swap_model_weights, reshard.megatron.prepare_swap_model_weights
  said = [
    raised(swap, trainer, engine, None if wrong_on_1 else "gloo"),
    raised(swap, trainer, engine, "gloo", dst_pool_index=3 if wrong_on_1 else 0),
    raised(swap, trainer, engine, "gloo", num_dst_pools=0 if wrong_on_1 else 1),
    raised(swap, trainer, engine, "gloo", num_dst_pools=2 if wrong_on_1 else 1),
    raised(swap, trainer, engine, "shm" if wrong_on_1 else "gloo"),
    raised(prepare, trainer, engine, dst_pool_index=-1 if wrong_on_1 else 0),
  ]
  fill(trainer, 1)
  swap(trainer, engine, "gloo")
  return said, wrong(engine, 1)


def unmatched():
  """What a copy service says of copies that do not match, and that it works afterwards."""
  service = reshard.megatron.CopyService()
  me, said = dist.get_rank(), []
  if me == 1:
    service.submit_send(torch.ones(2), 2, 7)
    service.submit_recv(torch.ones(2), 0, 8)
  said.append(raised(service.run))
  if me == 1:
    service.submit_send(torch.ones(2), 2, 7)
  if me == 2:
    service.submit_recv(torch.ones(2, dtype=torch.bfloat16), 1, 7)
  said.append(raised(service.run))
  service.submit_send(torch.ones(2), 9 if me == 3 else me, 1)
  service.submit_recv(torch.ones(2), me, 1)
  said.append(raised(service.run))
  # Two tensors with one id, a scalar, an empty one, and a step from the next rank without ids.
  got = [torch.zeros(3), torch.zeros(2, 2), torch.zeros(()), torch.zeros(0)]
  for tensor in got:
    service.submit_send(torch.full_like(tensor, me + 1.0), (me + 1) % 4, 5)
    service.submit_recv(tensor, (me - 1) % 4, 5)
  service.run()
  said.append([tensor.flatten().tolist() for tensor in got])
  service.run()  # nothing was submitted
  service.close()
  return said


def late():
  """Rank 3 does not come. The others are told who it was; then all meet again."""
  trainer, engine = models("llama", "tp=2", "tp=1")
  service = reshard.megatron.CopyService(timeout=2)
  fill(trainer, 1)
  said = ""
  if dist.get_rank() != 3:
    said = raised(reshard.megatron.reshard_model_weights, trainer, engine, service)
  dist.barrier()
  reshard.megatron.reshard_model_weights(trainer, engine, service)
  return said, wrong(engine, 1)


def page(blocks):
  """Runs blocks of docs/megatron.md, one by one; what the engine then lacks."""
  trainer, engine = models("llama", "tp=2", "tp=1")
  found = []
  for step, block in enumerate(blocks):
    fill(trainer, step)
    clear(engine)
    exec(block, {"trainer": trainer, "engine": engine})
    found += wrong(engine, step)
  return found


def joined(rank, size, store):
  """A process group over two worlds, each with a default group of its own, as frameworks for RL make it."""
  c10d = dist.distributed_c10d
  store = dist.PrefixStore("joined", dist.FileStore(store, size))
  timeout = datetime.timedelta(minutes=1)
  group, _ = c10d._new_process_group_helper(size, rank, [], "gloo", store, "joined", timeout=timeout)
  c10d._world.pg_group_ranks[group] = {n: n for n in range(size)}
  return group


def worlds(folder, name, source, target):
  """A trainer in one world and an engine in another, both with ranks from 0; what is wrong, by each way in.

  folder  empty; the worlds meet there
  """
  rank, size = dist.get_rank(), dist.get_world_size()
  trains, half = rank < size // 2, size // 2
  dist.destroy_process_group()
  dist.init_process_group("gloo", f"file://{folder}/{trains}", rank=rank % half, world_size=half)
  try:
    group = joined(rank, size, f"{folder}/joined")
    return _between_worlds(name, source, target, trains, group, half)
  finally:
    dist.destroy_process_group()
    dist.init_process_group("gloo", f"file://{folder}/all", rank=rank, world_size=size)


def _between_worlds(name, source, target, trains, group, offset):
  (modules,) = models(name, source if trains else target)
  group_experts(modules)
  both = (modules, None) if trains else (None, modules)
  found = []
  for step, way in enumerate(("drop-in", "megatron", "service") if TAKES_NONE else ("drop-in",)):
    fill(modules, step) if trains else clear(modules)
    if way == "drop-in":
      reshard.megatron.swap_model_weights(*both, "gloo", group, 0, offset)
    elif way == "megatron":
      resharding.swap_model_weights(*both, "gloo", group, 0, offset)
    else:
      service = reshard.megatron.CopyService(group)
      resharding.reshard_model_weights(*both, service, group, 0, offset)
      service.close()
    found += [] if trains else wrong_by(way, modules, step)
  reshard.megatron.clear_all_caches()
  refit.clear_service_cache()
  getattr(refit, "clear_plan_cache", lambda: None)()
  return found
