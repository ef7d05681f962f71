# SPDX-License-Identifier: Apache-2.0
"""Tensors on a GPU for tests: torch's on a real one, and a stand-in for them on the emulated one.

`gpu()` is the machine: both kinds have the same methods. The real one is taken if RESHARD_TEST_GPU is its number."""

import contextlib
import ctypes
import functools
import os

import pytest
import torch

import reshard
from small_models import model, values, zeros

_DLPACK = {torch.float32: (2, 32), torch.float16: (2, 16), torch.bfloat16: (4, 16), torch.uint8: (1, 8), torch.int64: (0, 64)}
_DLPACK |= {torch.float8_e4m3fn: (10, 8), torch.float8_e8m0fnu: (14, 8)}
_TYPESTR = {torch.float32: "<f4", torch.float16: "<f2", torch.uint8: "|u1", torch.int64: "<i8", torch.uint16: "<u2"}


class _Device(ctypes.Structure):
  _fields_ = [("type", ctypes.c_int32), ("number", ctypes.c_int32)]


class _DType(ctypes.Structure):
  _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
  _fields_ = [
    ("data", ctypes.c_void_p), ("device", _Device), ("ndim", ctypes.c_int32), ("dtype", _DType),
    ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)), ("offset", ctypes.c_uint64),
  ]  # fmt: skip


class _Managed(ctypes.Structure):
  _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class _Versioned(ctypes.Structure):
  _fields_ = [
    ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
    ("flags", ctypes.c_uint64), ("tensor", _Tensor),
  ]  # fmt: skip


class Stream:
  """Stands for torch.cuda.Stream: a stream of the emulated GPU."""

  def __init__(self, machine, device_index=0):
    self.machine, self.device_index = machine, device_index
    handle = ctypes.c_void_p()
    machine.call("cuStreamCreate", ctypes.byref(handle), 1)
    self.cuda_stream = handle.value

  def synchronize(self):
    self.machine.call("cuStreamSynchronize", ctypes.c_void_p(self.cuda_stream))


class DlpackTensor:
  """Stands for a CUDA tensor of torch before its table of C functions: memory of the emulated GPU, by DLPack."""

  versioned, read_only, number = True, False, 0

  def __init__(self, machine, like, offset=0):
    self.machine, self.dtype, self.shape = machine, like.dtype, tuple(like.shape)
    self._strides = tuple(like.stride())
    self.nbytes = (sum((n - 1) * s for n, s in zip(like.shape, like.stride(), strict=True)) + 1) * like.element_size()
    self.nbytes = self.nbytes if like.numel() else 0
    self.block, self.offset = machine.allocate(self.nbytes + offset), offset
    self.asked = []  # the streams that __dlpack__ was told
    self._held = []

  def __del__(self):
    self.free()

  def free(self):
    if self.block:
      self.machine.free(self.block)
      self.block = None

  @property
  def address(self):
    return (self.block or 0) + self.offset if self.nbytes else 0

  def __dlpack_device__(self):
    return 2, self.number

  def _described(self):
    n = len(self.shape)
    code, bits = _DLPACK[self.dtype]
    dims = (ctypes.c_int64 * n)(*self.shape), (ctypes.c_int64 * n)(*self._strides)
    self._held.append(dims)
    base = self.block if self.nbytes else None
    return _Tensor(base, _Device(2, self.number), n, _DType(code, bits, 1), dims[0], dims[1], self.offset if base else 0)

  def __dlpack__(self, *, stream=None, max_version=None):
    if max_version is not None and not self.versioned:
      raise TypeError("max_version")
    self.asked.append(stream)
    if self.versioned:
      made, name = _Versioned(1, 0, None, None, int(self.read_only), self._described()), b"dltensor_versioned"
    else:
      made, name = _Managed(self._described(), None, None), b"dltensor"
    self._held.append((made, name))
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(ctypes.addressof(made), name, None)


_DESCRIBE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(_Tensor))
_CURRENT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))


class _Table(ctypes.Structure):
  _fields_ = [
    ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("previous", ctypes.c_void_p), ("allocate", ctypes.c_void_p),
    ("managed_from_object", ctypes.c_void_p), ("object_from_managed", ctypes.c_void_p), ("tensor_from_object", _DESCRIBE),
    ("current_stream", _CURRENT),
  ]  # fmt: skip


class TableTensor(DlpackTensor):
  """Stands for a CUDA tensor of torch as it is now: its type has DLPack's table of C functions."""

  stream = 0  # on which its library works

  def __dlpack__(self, **_):
    raise AssertionError("the table is faster")

  @_DESCRIBE
  def _describe(self, out):
    out[0] = self._described()
    return 0

  @_CURRENT
  def _stream(kind, number, out):
    assert (kind, number) == (2, 0)
    out[0] = TableTensor.stream
    return 0

  _table = _Table(1, 3, None, None, None, None, _describe, _stream)


def _set_table():
  new = ctypes.pythonapi.PyCapsule_New
  new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
  TableTensor.__dlpack_c_exchange_api__ = new(ctypes.addressof(TableTensor._table), b"dlpack_exchange_api", None)


_set_table()


class CudaArray:
  """Stands for an array of Numba: memory of the emulated GPU, by the CUDA array interface."""

  def __init__(self, machine, like, read_only=False, stream=None):
    self.memory = DlpackTensor(machine, like)
    self.dtype, self.shape, self.nbytes = like.dtype, tuple(like.shape), self.memory.nbytes
    self.read_only, self.stream = read_only, stream

  @property
  def address(self):
    return self.memory.address

  @property
  def __cuda_array_interface__(self):
    return {
      "shape": self.shape, "typestr": _TYPESTR[self.dtype], "data": (self.address, self.read_only),
      "version": 3, "strides": None, "stream": self.stream,
    }  # fmt: skip


class EmulatedGpu:
  """The stand-in for libcuda.so.1 that this process has loaded, and its counts."""

  def __init__(self):
    self.library = ctypes.CDLL("libcuda.so.1")
    self.call("cuInit", 0)
    context = ctypes.c_void_p()
    self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    self._context = context
    self.library.emulated_gpu_allocated.restype = ctypes.c_ulonglong

  _SYMBOLS = {"cuMemAlloc": "cuMemAlloc_v2", "cuMemFree": "cuMemFree_v2"}

  def call(self, name, *arguments):
    if name.startswith("cu") and hasattr(self, "_context"):
      self.library.cuCtxPushCurrent_v2(self._context)
      try:
        status = getattr(self.library, self._SYMBOLS.get(name, name))(*arguments)
      finally:
        self.library.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
    else:
      status = getattr(self.library, self._SYMBOLS.get(name, name))(*arguments)
    assert status == 0, f"{name}: {status}"

  def allocate(self, nbytes):
    address = ctypes.c_ulonglong()
    self.call("cuMemAlloc", ctypes.byref(address), ctypes.c_size_t(max(nbytes, 1)))
    return address.value

  def free(self, address):
    self.call("cuMemFree", ctypes.c_ulonglong(address))

  def _copy(self, to, source, nbytes, stream):
    handle = ctypes.c_void_p(getattr(stream, "cuda_stream", stream) or 0)
    values = (ctypes.c_ulonglong(to), ctypes.c_ulonglong(source), ctypes.c_size_t(nbytes))
    self.call("cuMemcpyAsync", *values, handle)

  def tensor(self, host, kind=DlpackTensor, **options):
    """A tensor with these values, which are there when this returns."""
    made = kind(self, host, **options)
    self.write(made, host)
    self.synchronize()
    return made

  def write(self, tensor, host, stream=None):
    """Gives a stream the copy. The values are kept until the process ends: the stream runs when it likes."""
    _written.append(host := _dense(host))
    if tensor.nbytes:
      self._copy(tensor.address, host.data_ptr(), tensor.nbytes, stream)

  def read(self, tensor, stream=None):
    """Values as they are after what the stream has; waits for it."""
    out = torch.empty(tensor.nbytes, dtype=torch.uint8)
    if tensor.nbytes:
      self._copy(out.data_ptr(), tensor.address, tensor.nbytes, stream)
    self.synchronize(stream)
    return out.view(tensor.dtype).view(tensor.shape)

  def stream(self):
    return Stream(self)

  def synchronize(self, stream=None):
    self.call("cuStreamSynchronize", ctypes.c_void_p(getattr(stream, "cuda_stream", stream) or 0))

  def calls(self, function):
    return self.library.emulated_gpu_calls(function.encode())

  def forget(self):
    self.library.emulated_gpu_forget()

  def fail(self, function, status):
    self.library.emulated_gpu_fail(function.encode(), status)

  def allocated(self):
    return self.library.emulated_gpu_allocated()

  @contextlib.contextmanager
  def limited(self, nbytes):
    self.library.emulated_gpu_limit(ctypes.c_ulonglong(nbytes))
    yield
    self.library.emulated_gpu_limit(ctypes.c_ulonglong(1 << 32))


_written = []


def _dense(host):
  """The bytes between the first and the last element."""
  return host if host.is_contiguous() else torch.as_strided(host, (host.untyped_storage().nbytes() // host.element_size(),), (1,), 0)


class TorchGpu:
  """torch on a real GPU."""

  def __init__(self, number):
    self.device = torch.device("cuda", number)

  def tensor(self, host):
    return host.to(self.device)

  def write(self, tensor, host, stream=None):
    with torch.cuda.stream(stream):
      tensor.copy_(host.pin_memory(), non_blocking=True)

  def read(self, tensor, stream=None):
    with torch.cuda.stream(stream):
      return tensor.cpu()

  def stream(self):
    return torch.cuda.Stream(self.device)

  def synchronize(self, stream=None):
    (torch.cuda.default_stream(self.device) if stream is None else stream).synchronize()


@functools.cache
def gpu():
  number = os.environ.get("RESHARD_TEST_GPU", "")
  return TorchGpu(int(number)) if number else EmulatedGpu()


def is_emulated():
  return not os.environ.get("RESHARD_TEST_GPU")


#: A mark of tests that need to see what the driver was asked for.
emulated = pytest.mark.skipif(not is_emulated(), reason="counts calls of the emulated GPU")
#: Calls that wait for a GPU, or may.
WAITS = ("cuStreamSynchronize", "cuEventSynchronize", "cuEventQuery", "cuStreamQuery", "cuMemFree", "cuMemAlloc")


def matrix(dtype="bfloat16", shape=(4, 6)):
  """A layout with one tensor "w" on rank 0."""
  return reshard.layout("hf", reshard.Model.from_tensors("one", {"w": (shape, dtype)}))


def numbers(dtype=torch.bfloat16, shape=(4, 6)):
  return torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)


def buffers(tensor, dtype="bfloat16", shape=(4, 6), **options):
  return reshard.RankBuffers(matrix(dtype, shape), {0: {"w": tensor}}, **options)


def on_gpu(tensors):
  return {name: gpu().tensor(tensor) for name, tensor in tensors.items()}


def read(tensors, stream=None):
  return {name: gpu().read(tensor, stream) for name, tensor in tensors.items()}


def sides(kind="dense", version=1):
  """Layouts of two engines' ranks and a whole source, with the source's tensors."""
  of = model(kind)
  return of, reshard.layout("hf", of), reshard.layout("vllm:tp=2", of), values(of, version)


def engine_memory(target):
  return {rank: on_gpu(zeros(target, rank)) for rank in (0, 1)}
