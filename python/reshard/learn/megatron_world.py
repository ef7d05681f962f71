# SPDX-License-Identifier: Apache-2.0
"""Megatron-Bridge's models on a machine without a GPU, for any rank of any world, in one process.

Import it before anything of megatron. What is replaced is only what computes, trains or reports: packages of kernels
that are not installed become empty modules, and Transformer Engine's layers become modules that have the same
parameters. Names, shapes and attributes of parameters are then Megatron-Core's own, of the modules that it builds with
Transformer Engine; so are the mappings of Megatron-Bridge.
"""

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
import typing
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed
import torch.utils._triton as _of_triton
import typing_extensions
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed.fake_pg import FakeStore

# torch keeps these answers, which must be those of a machine without triton: ask before the stand-in exists.
for _ask in ("has_triton", "has_triton_package", "has_triton_tma", "has_triton_tma_device"):
  getattr(_of_triton, _ask, bool)()
import accelerate  # noqa: E402, F401
import transformers  # noqa: E402, F401
import transformers.modeling_utils  # noqa: E402

#: What Megatron-Bridge and Megatron-Core import and a machine without a GPU may lack.
_ABSENT = frozenset(
  """apex causal_conv1d comet_ml cudnn datasets deep_ep diffusers fast_hadamard_transform fla flash_attn flashinfer
  grouped_gemm hydra imageio librosa mamba_ssm megatron_energon mistral_common mlflow modelopt multistorageclient nemo_run
  nvdlfw_inspect nvidia_resiliency_ext onnx open_clip peft qwen_vl_utils soundfile tensorboard timm torchvision
  transformer_engine transformer_engine_torch triton wandb webdataset""".split()
)


class _Nothing(type):
  """A class whose attributes are such classes, too."""

  def __getattr__(cls, name: str) -> Any:
    if name.startswith("__"):
      raise AttributeError(name)
    return _nothing(name)


def _called(_: Any, *given: Any, **__: Any) -> Any:
  """As a decorator: what it decorates."""
  return given[0] if given and callable(given[0]) else None


def _nothing(name: str) -> Any:
  def attribute(self: Any, of: str) -> Any:
    if of.startswith("__"):
      raise AttributeError(of)
    return _nothing(of)

  members: dict[str, Any] = {"__init__": lambda *_, **__: None, "__call__": _called, "__getattr__": attribute}
  return _Nothing(name, (), members)


class _Empty(types.ModuleType):
  def __getattr__(self, name: str) -> Any:
    if name == "__version__":
      return "2.9.0"
    if name.startswith("__"):
      raise AttributeError(name)
    return _nothing(name)


class _EmptyModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
  """Finds an empty module for each absent one; asked last."""

  def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
    if fullname.partition(".")[0] in _ABSENT:
      return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
    return None

  def create_module(self, spec: Any) -> types.ModuleType:
    module = _Empty(spec.name)
    module.__path__ = []
    return module

  def exec_module(self, module: types.ModuleType) -> None:
    pass


# -- Transformer Engine's layers: their parameters (transformer_engine/pytorch/module, 2.9)


class _Layer(torch.nn.Module):
  """A layer that only has parameters. Megatron-Core passes the sizes of the whole, and how ranks share it."""

  def _parameter(self, name: str, *shape: int, dtype: torch.dtype, dim: int | None = None) -> None:
    """dim: the dimension that ranks share; None: each has the whole."""
    made = torch.nn.Parameter(torch.empty(shape, dtype=dtype))
    self.register_parameter(name, made)
    if dim is not None:
      made.tensor_model_parallel, made.partition_dim, made.partition_stride = True, dim, 1  # type: ignore[attr-defined]

  def _norm(self, prefix: str, size: int, kind: str, dtype: torch.dtype) -> None:
    self._parameter(prefix + "weight", size, dtype=dtype)
    if kind == "LayerNorm":
      self._parameter(prefix + "bias", size, dtype=dtype)

  def set_tensor_parallel_group(self, group: Any) -> None:
    self.tp_group = group


class Linear(_Layer):
  def __init__(
    self, in_features: int, out_features: int, *, bias: bool = True, parallel_mode: str | None = None, tp_size: int = 1,
    params_dtype: torch.dtype = torch.bfloat16, **_: Any,
  ) -> None:  # fmt: skip
    super().__init__()
    column, row = parallel_mode == "column", parallel_mode == "row"
    self.in_features, self.out_features, self.parallel_mode = in_features, out_features, parallel_mode
    rows, columns = out_features // (tp_size if column else 1), in_features // (tp_size if row else 1)
    self._weights(rows, columns, bias, params_dtype, 0 if column else 1 if row else None)

  def _weights(self, rows: int, columns: int, bias: bool, dtype: torch.dtype, dim: int | None) -> None:
    # Transformer Engine says of every weight of a linear layer which dimension ranks would share.
    self._parameter("weight", rows, columns, dtype=dtype, dim=dim)
    if bias:
      self._parameter("bias", rows, dtype=dtype, dim=0 if dim == 0 else None)
    else:
      self.register_parameter("bias", None)


class LayerNormLinear(Linear):
  def __init__(
    self, in_features: int, out_features: int, *, normalization: str = "LayerNorm",
    params_dtype: torch.dtype = torch.bfloat16, **keys: Any,
  ) -> None:  # fmt: skip
    super().__init__(in_features, out_features, params_dtype=params_dtype, **keys)
    self._norm("layer_norm_", in_features, normalization, params_dtype)


class GroupedLinear(Linear):
  def __init__(self, num_gemms: int, in_features: int, out_features: int, **keys: Any) -> None:
    self.num_gemms = num_gemms
    super().__init__(in_features, out_features, **keys)

  def _weights(self, rows: int, columns: int, bias: bool, dtype: torch.dtype, dim: int | None) -> None:
    for i in range(self.num_gemms):
      self._parameter(f"weight{i}", rows, columns, dtype=dtype, dim=dim)
      if bias:
        self._parameter(f"bias{i}", rows, dtype=dtype, dim=0 if dim == 0 else None)


class LayerNorm(_Layer):
  KIND = "LayerNorm"

  def __init__(self, normalized_shape: int, *_: Any, params_dtype: torch.dtype = torch.bfloat16, **__: Any) -> None:
    super().__init__()
    self._norm("", normalized_shape, self.KIND, params_dtype)


class RMSNorm(LayerNorm):
  KIND = "RMSNorm"


class DotProductAttention(_Layer):
  def __init__(self, num_attention_heads: int, *_: Any, softmax_type: str = "vanilla", tp_size: int = 1, **__: Any) -> None:
    super().__init__()
    if softmax_type == "learnable":
      self._parameter("softmax_offset", num_attention_heads // tp_size, dtype=torch.float32)


def _layers() -> types.ModuleType:
  found = _Empty("transformer_engine.pytorch")
  found.__path__ = []
  for kind in (Linear, LayerNormLinear, GroupedLinear, LayerNorm, RMSNorm, DotProductAttention):
    setattr(found, kind.__name__, kind)
  return found


class _GatedNorm(torch.nn.Module):
  """Stands for mamba_ssm's RMSNorm: the same parameter."""

  def __init__(self, size: int, device: Any = None, dtype: Any = None, **_: Any) -> None:
    super().__init__()
    self.weight = torch.nn.Parameter(torch.ones(size, device=device, dtype=dtype))
    self.register_parameter("bias", None)


class OnCpu(TorchFunctionMode):
  """What is made on a GPU is made in the host's memory."""

  def __torch_function__(self, function: Any, kinds: Any, given: Any = (), keys: Any = None) -> Any:
    keys = dict(keys or {})
    if "device" in keys and _is_gpu(keys["device"]):
      keys["device"] = "cpu"
    if function is torch.Tensor.cuda:
      return given[0]
    if function is torch.device and given and _is_gpu(given[0]):
      return torch.device("cpu")
    if function is torch.Tensor.to:
      given = tuple("cpu" if isinstance(one, int | torch.device) and _is_gpu(one) else one for one in given)
    return function(*given, **keys)


def _is_gpu(device: Any) -> bool:
  return (isinstance(device, int) and not isinstance(device, bool)) or str(device).startswith("cuda")


def _prepare() -> None:
  warnings.simplefilter("ignore")
  if not hasattr(typing, "override"):  # Python 3.11
    typing.override = typing_extensions.override  # type: ignore[attr-defined]
  sys.meta_path.append(_EmptyModules())
  if importlib.util.find_spec("transformer_engine").loader.__class__ is _EmptyModules:  # type: ignore[union-attr]
    sys.modules["transformer_engine.pytorch"] = layers = _layers()
    importlib.import_module("transformer_engine").pytorch = layers  # type: ignore[attr-defined]
    offload = importlib.import_module("transformer_engine.pytorch.cpu_offload")
    offload.get_cpu_offload_context = lambda *_, **__: (contextlib.nullcontext(), None)  # type: ignore[attr-defined]
    gated = importlib.import_module("mamba_ssm.ops.triton.layernorm_gated")
    gated.RMSNorm = _GatedNorm  # type: ignore[attr-defined]
  if not torch.cuda.is_available():
    torch.cuda.current_device = lambda: 0
    torch.cuda.Stream = _nothing("Stream")  # type: ignore[misc]


_prepare()

import megatron.bridge  # noqa: E402, F401
from megatron.core import parallel_state  # noqa: E402
from megatron.core.process_groups_config import ProcessGroupCollection  # noqa: E402
from megatron.core.tensor_parallel.random import CudaRNGStatesTracker  # noqa: E402

# Nothing is drawn.
CudaRNGStatesTracker.fork = lambda *_, **__: contextlib.nullcontext()


@contextlib.contextmanager
def rank_of(world: int, rank: int, **sizes: Any) -> Iterator[Any]:
  """Megatron-Core's process groups as rank `rank` of `world` sees them."""
  torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
  try:
    parallel_state.initialize_model_parallel(create_gloo_process_groups=False, **sizes)
    yield ProcessGroupCollection.use_mpu_process_groups()
  finally:
    for name in ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN"):  # a model's choice, which the next one minds
      os.environ.pop(name, None)
    parallel_state.destroy_model_parallel()
    torch.distributed.destroy_process_group()
