# SPDX-License-Identifier: Apache-2.0
"""A stand-in for torch's CUDA tensors on a machine without a GPU: what adapters see of them.

A CudaTensor says that it is on cuda:0, and its memory is the emulated GPU's. Operations of torch on it run on the host at
once, after what torch's current stream has: torch's own kernels are not emulated, and what they overtake is not found."""

import contextlib
import ctypes
import threading
import weakref

import torch
from torch.utils._pytree import tree_map

from gpu_memory import DlpackTensor, Stream, gpu

DEVICE = torch.device("cuda", 0)
_blocks: dict[int, int] = {}  # of the emulated GPU, that tensors here are in: address -> bytes
_current = threading.local()


class TorchStream(Stream):
  """Stands for torch.cuda.Stream."""

  def wait_stream(self, other):
    other.synchronize()  # a copy of torch runs at once, so that what it follows must have run

  def __eq__(self, other):
    return isinstance(other, TorchStream) and other.cuda_stream == self.cuda_stream

  def __hash__(self):
    return hash(self.cuda_stream)


class _Legacy(TorchStream):
  def __init__(self):
    self.machine, self.device_index, self.cuda_stream = gpu(), 0, 0


def current_stream(device=None):
  return getattr(_current, "stream", None) or _Legacy()


@contextlib.contextmanager
def stream(chosen):
  before = getattr(_current, "stream", None)
  _current.stream = chosen
  try:
    yield
  finally:
    _current.stream = before


def _on_gpu(host):
  """A copy of a tensor of the host in memory of the emulated GPU."""
  nbytes = host.numel() * host.element_size()
  if nbytes == 0:
    return torch.empty(host.shape, dtype=host.dtype)
  address = gpu().allocate(nbytes)
  memory = (ctypes.c_uint8 * nbytes).from_address(address)
  _blocks[address] = nbytes
  weakref.finalize(memory, _free, address)
  inner = torch.frombuffer(memory, dtype=torch.uint8).view(host.dtype).view(host.shape)
  inner.copy_(host)
  return inner


def _free(address):
  del _blocks[address]  # first: another thread may get the same address as soon as it is free
  gpu().free(address)


def _is_there(tensor):
  at = tensor.untyped_storage().data_ptr()
  return tensor.numel() == 0 or any(begin <= at < begin + size for begin, size in list(_blocks.items()))


def _names_gpu(device):
  return device is not None and str(device).startswith("cuda")


class CudaTensor(torch.Tensor):
  """Stands for a torch.Tensor on cuda:0."""

  __dlpack_c_exchange_api__ = None  # that of torch would describe the outer tensor
  device, is_cuda, is_cpu = DEVICE, True, False

  @staticmethod
  def __new__(cls, inner):
    return torch.Tensor._make_subclass(cls, torch.empty(0))

  def __init__(self, inner):
    assert _is_there(inner)
    self.inner = inner

  @classmethod
  def __torch_function__(cls, func, types, args=(), kwargs=None):
    kwargs = dict(kwargs or {})
    if func.__name__ == "copy_":
      current_stream().synchronize()
      _inner(args[0]).copy_(_inner(args[1]))
      return args[0]
    goes = [x for x in (*args[1:], *kwargs.values()) if isinstance(x, str | torch.device)]
    leaves = func.__name__ == "cpu" or (func.__name__ == "to" and any(not _names_gpu(x) for x in goes))
    if func.__name__ == "to":
      args = args[:1] + tuple(x for x in args[1:] if x not in goes)
      kwargs = {name: x for name, x in kwargs.items() if name != "device"}
      if len(args) == 1 and not kwargs.get("dtype"):
        copies = kwargs.get("copy", False) or leaves
        current_stream().synchronize()
        found = _inner(args[0]).clone() if copies else _inner(args[0])
        return found if leaves else _wrapped(found)
    if not func.__name__.startswith("__"):
      current_stream().synchronize()
    out = func(*tree_map(_inner, args), **tree_map(_inner, kwargs))
    return out if leaves else tree_map(_wrapped, out)

  def __dlpack_device__(self):
    return 2, 0

  def __dlpack__(self, *, stream=None, max_version=None):
    exported = DlpackTensor.__new__(DlpackTensor)
    exported.dtype, exported.shape, exported._strides = self.inner.dtype, tuple(self.inner.shape), tuple(self.inner.stride())
    exported.nbytes, exported.block, exported.offset = self.inner.nbytes, self.inner.data_ptr(), 0
    exported.asked, exported._held = [], []
    exported.free = lambda: None  # it is this tensor's memory
    capsule = exported.__dlpack__(stream=stream, max_version=max_version)
    _exported[self.inner.data_ptr()] = exported
    return capsule


_exported = {}  # what capsules describe, by address; one for each


def _inner(x):
  return x.inner if isinstance(x, CudaTensor) else x


def _wrapped(x):
  if not isinstance(x, torch.Tensor) or isinstance(x, CudaTensor):
    return x
  return CudaTensor(x if _is_there(x) else _on_gpu(x))


def cuda(host):
  """A CudaTensor with these values."""
  return CudaTensor(_on_gpu(host))


def install():
  """Puts the stand-ins in the place of torch's, for the life of the process."""
  torch.cuda.current_stream, torch.cuda.stream = current_stream, stream
  torch.accelerator.current_accelerator = lambda: DEVICE
  torch.accelerator.is_available = lambda: True
  empty, zeros = torch.empty, torch.zeros

  def made(make):
    def on(*sizes, device=None, pin_memory=False, **options):
      tensor = make(*sizes, device=None if _names_gpu(device) else device, **options)
      return cuda(tensor) if _names_gpu(device) else tensor

    return on

  torch.empty, torch.zeros = made(empty), made(zeros)
  move = torch.Tensor.to

  def to(self, *args, **kwargs):
    goes = any(_names_gpu(x) for x in (*args, *kwargs.values()) if isinstance(x, str | torch.device))
    if goes and not isinstance(self, CudaTensor):
      return cuda(self)
    return move(self, *args, **kwargs)

  torch.Tensor.to = to
