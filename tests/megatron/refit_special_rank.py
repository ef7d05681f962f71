# SPDX-License-Identifier: Apache-2.0
"""One rank with models whose weights are stored in other ways, for test_refit.py: quantised, or cut
once more and padded."""

import gloo_rank
import mxfp8_stand_in
import refit_rank
import torch
import torch.distributed as dist
from megatron.core.resharding import refit
from refit_rank import clear, fill, models, raised, values_of, wrong

import reshard.megatron
from reshard.live._modules import held_by


def _ask_for_mxfp8(modules):
  modules[0].config.transformer_impl, modules[0].config.fp8_recipe = "inference_optimized", "mxfp8"
  mxfp8_stand_in.switched_on()


def _wrong_buffers(module, held, step):
  """Names of quantised weights that are not the quantised values that `fill()` gave the source."""
  found = []
  for weight in held:
    buffer = mxfp8_stand_in.buffer_of(module, weight.name)
    data, scale = mxfp8_stand_in.quantised(values_of(weight, step))
    if not torch.equal(buffer.data.cpu().float(), data.float()) or not torch.equal(buffer.scale.cpu(), scale):
      found.append(weight.name)
  return found


def _addresses(module, held):
  buffers = [mxfp8_stand_in.buffer_of(module, weight.name) for weight in held]
  return [(buffer.data.data_ptr(), buffer.scale.data_ptr()) for buffer in buffers]


def _converting(names, buffers):
  """Megatron's transform that quantises on the senders."""
  return mxfp8_stand_in.MXFP8ReshardTransform(names, buffers, convert_on_send=True)


def mxfp8(way, source, target, sources, targets, swizzled):
  """Two refits into a target that prepare_swap_model_weights() quantised.

  way  "drop-in", "megatron" (its calls, with reshard's service), "sender" (drop-in, a transform of Megatron's
       that quantises before sending), or "cleared" (drop-in, with plans made anew)

  Returns how many weights are quantised, what is wrong, and whether all buffers stayed where they were.
  """
  if way in ("megatron", "sender") and mxfp8_stand_in.MXFP8ReshardTransform is None:
    return None
  mxfp8_stand_in.swizzled = swizzled
  trainer, engine = models("llama", source, target)
  _ask_for_mxfp8(engine)
  me = dist.get_rank()
  both = (trainer if me in sources else None, engine if me in targets else None)
  calls = refit if way == "megatron" else reshard.megatron
  service = reshard.megatron.CopyService() if way == "megatron" else "gloo"
  before = held_by(engine)
  calls.prepare_swap_model_weights(*both)
  left = dict(engine[0].named_parameters())
  held = [weight for weight in before if weight.name not in left and weight.name.endswith("weight")]
  transform, found = None, []
  if way == "sender":
    names = {name for name, _ in trainer[0].named_parameters() if "linear_qkv" in name or "linear_fc1" in name}
    buffers = {weight.name: mxfp8_stand_in.buffer_of(engine[0], weight.name) for weight in held}
    transform = _converting(names, buffers)
  start = _addresses(engine[0], held)
  for step in (1, 2):
    fill(trainer, step)
    if way == "cleared":
      reshard.megatron.clear_all_caches()
    calls.swap_model_weights(*both, service, transform=transform)
    found += (wrong(engine, step) + _wrong_buffers(engine[0], held, step)) if me in targets else []
  refit.clear_all_caches() if way == "megatron" else None
  return len(held), found, start == _addresses(engine[0], held)


class _Renewed(torch.nn.Module):
  """Stands for a layer of main that derives something from a quantised weight."""

  calls = 0

  def refresh_flashinfer_mxfp8_weights(self):
    self.calls += 1


def renewed():
  """How often a refit renewed what a quantised target and a plain one derive."""
  mxfp8_stand_in.swizzled = True
  trainer, engine, plain = models("llama", "tp=2", "tp=1", "tp=1")
  _ask_for_mxfp8(engine)
  reshard.megatron.prepare_swap_model_weights(trainer, engine)
  parts = []
  for modules in (engine, plain):
    parts.append(_Renewed())
    modules[0].decoder.derived = parts[-1]
    reshard.megatron.swap_model_weights(trainer, modules, "gloo")
  return [part.calls for part in parts]


class _Nothing:
  def should_transform(self, param_name):
    return False


def mxfp8_errors():
  """What is said of quantised weights that would not be written, if it is so on rank 1; and afterwards."""
  mxfp8_stand_in.swizzled = True
  trainer, engine, other = models("llama", "tp=2", "tp=1", "tp=1")
  me, said = dist.get_rank(), []
  _ask_for_mxfp8(engine)
  reshard.megatron.prepare_swap_model_weights(trainer, engine)
  swap = reshard.megatron.swap_model_weights
  said.append(raised(swap, trainer, engine, "gloo", transform=_Nothing() if me == 1 else None))
  if me == 1:
    _ask_for_mxfp8(other)
    reshard.megatron._transforms.quantise(other)
    reshard.megatron._transforms._quantised.pop(other[0])  # as if others had done it
  said.append(raised(swap, trainer, other, "gloo"))
  (chunks,) = models("llama", "pp=2,vpp=2")
  _ask_for_mxfp8(chunks)
  said.append(raised(reshard.megatron.prepare_swap_model_weights, trainer, chunks if me == 1 else engine))
  fill(trainer, 1)
  swap(trainer, engine, "gloo")
  return said, wrong(engine, 1)


def quantised_parameters(source, target):
  """From quantised parameters into quantised ones: what is wrong, and how often each was quantised."""
  mxfp8_stand_in.swizzled = True
  trainer, engine = models("llama", source, target)
  fill(trainer, 1)
  made = [_with_quantised(modules) for modules in (trainer, engine)]
  reshard.megatron.swap_model_weights(trainer, engine, "gloo")
  held = {weight.name: weight for weight in held_by(engine)}
  found = []
  for name, parameter in made[1].items():
    # Each rank of the trainer has whole blocks, so that it quantises them as one rank would.
    expected = mxfp8_stand_in.dequantised(*mxfp8_stand_in.quantised(values_of(held[name], 1)))
    found += [] if torch.equal(parameter.dequantize().cpu(), expected) else [name]
  return found, len(made[1]), {parameter.calls for parameter in made[1].values()}


def _with_quantised(modules):
  made = {}
  for prefix, module in modules[0].decoder.named_modules():
    for key, parameter in list(module._parameters.items()):
      if parameter is not None and key == "weight" and prefix.endswith(("linear_qkv", "linear_fc1")):
        module._parameters[key] = mxfp8_stand_in.QuantisedParameter(parameter.data)
        vars(module._parameters[key]).update(vars(parameter))
        made[f"decoder.{prefix}.{key}"] = module._parameters[key]
  return made


def _cut_again(modules, alignment):
  """Cuts matrices over the data-parallel group, padded to whole multiples of `alignment` rows.

  As generalised tensor parallelism of main does it, whose layers need Transformer Engine: stands for them.
  """
  group = modules[0].pg_collection.dp
  for module in modules[0].decoder.modules():
    for key, parameter in list(module._parameters.items()):
      if parameter is None or parameter.dim() != 2:
        continue
      rows = parameter.shape[0]
      size = -(-rows // (group.size() * alignment)) * alignment
      shard = torch.nn.Parameter(parameter.new_full((size, parameter.shape[1]), 7.0))
      vars(shard).update(vars(parameter))
      shard.is_gtp_weight_remat, shard.group = True, group
      shard.pad_length = size * group.size() - rows
      module._parameters[key] = shard


def _padding(modules):
  """All rows that only pad a shard."""
  for tensor in modules[0].decoder.parameters():
    if getattr(tensor, "is_gtp_weight_remat", False):
      size = tensor.shape[0]
      rows = size * tensor.group.size() - tensor.pad_length - tensor.group.rank() * size
      yield tensor.detach()[max(rows, 0) :]


def cut_again(name, source, target, alignment):
  """From a model that is cut again into one that is not, and back. What is wrong, and the rows of padding."""
  trainer, engine = models(name, source, target)
  _cut_again(trainer, alignment)
  found = []
  for step, (here, there) in enumerate(((trainer, engine), (engine, trainer))):
    fill(here, step)
    clear(there)
    reshard.megatron.swap_model_weights(here, there, "gloo")
    found += wrong(there, step)
  padding = torch.cat([rows.flatten() for rows in _padding(trainer)])
  return found, len(padding), bool((padding == 7).all())


def cut_wrongly():
  """What is said of shards on rank 1 that lack their group, or have too much padding."""
  trainer, engine = models("llama", "tp=2", "tp=1")
  _cut_again(trainer, 1)
  weight = trainer[0].decoder.layers[0].mlp.linear_fc1.weight
  said = []
  for group, padding in ((None, 0), (weight.group, 1000)):
    if dist.get_rank() == 1:
      weight.group, weight.pad_length = group, padding
    said.append(raised(reshard.megatron.swap_model_weights, trainer, engine, "gloo"))
  return said


def serve(*arguments):
  gloo_rank.serve(*arguments, functions=vars(refit_rank) | globals())
