# SPDX-License-Identifier: Apache-2.0
"""MXFP8 targets of Megatron-Core on a CPU.

Its quantising kernels need a GPU, and which weights it quantises depends on Transformer Engine. Both are
replaced: the kernel by torch, the choice by matrices that have whole blocks. What stores the weights and
writes slices into them is Megatron's own from 0.17 on. 0.16 has nothing of it, so there a stand-in does that
too, by the interface of 0.17.
"""

import dataclasses

import torch
from megatron.core.resharding import refit

BLOCK = 32
#: As Megatron's 1-D scales, which depend on the whole weight, or 2-D, a row for each row of the weight.
swizzled = True


def quantised(values):
  """Data in E4M3, and a power of two for each 32 columns, that of the least at which none overflows."""
  rows, columns = values.shape
  blocks = values.float().reshape(rows, columns // BLOCK, BLOCK)
  bits = (blocks.abs().amax(-1) / 448.0).view(torch.int32)
  exponent = (bits + 0x7FFFFF) >> 23  # rounded up
  data = (blocks / torch.exp2(exponent.float() - 127)[..., None]).reshape(rows, columns)
  scale = exponent.to(torch.uint8)
  return data.to(torch.float8_e4m3fn), scale.t().flatten() if swizzled else scale


def dequantised(data, scale):
  rows, columns = data.shape
  grid = scale.reshape(columns // BLOCK, rows).t() if swizzled else scale
  blocks = data.float().reshape(rows, columns // BLOCK, BLOCK)
  return (blocks * torch.exp2(grid.float() - 127)[..., None]).reshape(rows, columns).to(torch.bfloat16)


def _wanted(parameter):
  # Cut columns would share blocks between ranks.
  cut = getattr(parameter, "partition_dim", 0) == 1 and not swizzled
  return parameter.dim() == 2 and parameter.shape[1] % BLOCK == 0 and not cut


def _own_release():
  """Whether this release quantises targets."""
  return hasattr(refit, "MXFP8ReshardTransform")


if _own_release():
  from megatron.core.inference.quantization import utils
  from megatron.core.inference.quantization.mxfp8_tensor import MXFP8Tensor
  from megatron.core.resharding.transforms import MXFP8ReshardTransform

  utils.HAVE_FLASHINFER = True
  utils._should_quantize_param = refit._should_quantize_param = _wanted
  MXFP8Tensor.from_bf16 = classmethod(lambda cls, x, *_, **__: cls(*quantised(x)))
else:
  MXFP8ReshardTransform = None

  @dataclasses.dataclass
  class MXFP8Tensor:
    data: torch.Tensor
    scale: torch.Tensor

  class _Transform:
    """Collects what arrives, and quantises a weight when it is whole."""

    def __init__(self, buffers):
      self._buffers, self._arrived = buffers, {}

    def should_transform(self, param_name):
      return param_name in self._buffers

    def prepare_send(self, param_name, src_slice, src_param):
      return [src_param[src_slice]]

    def prepare_recv(self, param_name, dst_slice):
      return [torch.empty_like(self._buffers[param_name].data[dst_slice], dtype=torch.bfloat16)]

    def finalize_recv(self, param_name, dst_slice, recv_buffers):
      zeros = torch.zeros_like(self._buffers[param_name].data, dtype=torch.bfloat16)
      values, count = self._arrived.pop(param_name, (zeros, 0))
      values[dst_slice] = recv_buffers[0]
      count += recv_buffers[0].numel()
      if count < values.numel():
        self._arrived[param_name] = values, count
        return
      for to, new in zip(vars(self._buffers[param_name]).values(), quantised(values), strict=True):
        to.copy_(new)

  def _set_up(plan, model):
    buffers = {}
    for prefix, module in model[0].decoder.named_modules():
      for key, parameter in list(module._parameters.items()):
        if parameter is not None and _wanted(parameter):
          buffers[f"decoder.{prefix}.{key}"] = MXFP8Tensor(*quantised(parameter.data))
          del module._parameters[key]
          setattr(module, key, buffers[f"decoder.{prefix}.{key}"])
    plan.transform = _Transform(buffers)


def switched_on():
  if not _own_release():
    refit._setup_mxfp8_transform_on_plan = _set_up


def buffer_of(module, name):
  """The quantised weight that a module has in the place of a parameter."""
  prefix, _, key = name.rpartition(".")
  found = getattr(module.get_submodule(prefix), key)
  assert isinstance(found, MXFP8Tensor)
  return found


class QuantisedParameter(torch.nn.Parameter):
  """Stands for a parameter of Transformer Engine's MXFP8 type: holds quantised values, says BF16."""

  def __new__(cls, values):
    self = super().__new__(cls, torch.full_like(values, torch.nan), requires_grad=False)
    self.calls = 0
    self.quantize_(values)
    return self

  def quantize_(self, values):
    self.calls += 1
    self.stored = quantised(values)

  def dequantize(self):
    return dequantised(*self.stored)

  def detach(self):
    return self
