# SPDX-License-Identifier: Apache-2.0
"""Law: memory is taken as it is, without a copy, or refused with its name and what would be right."""

import array
import ctypes
import gc
import mmap
import weakref

import numpy as np
import pytest
import torch

import reshard


def matrix(dtype="bfloat16", shape=(4, 6)):
  """A layout with one tensor "w" on rank 0."""
  return reshard.layout("hf", reshard.Model.from_tensors("one", {"w": (shape, dtype)}))


def buffers(tensor, dtype="bfloat16", shape=(4, 6)):
  return reshard.RankBuffers(matrix(dtype, shape), {0: {"w": tensor}})


def refused(tensor, *texts, dtype="bfloat16", shape=(4, 6), error=reshard.InvalidArgumentError):
  with pytest.raises(error) as raised:
    buffers(tensor, dtype, shape)
  for text in ("rank 0: tensor 'w': ", *texts):
    assert text in str(raised.value)


TORCH = {
  "BOOL": torch.bool,
  "U8": torch.uint8,
  "I8": torch.int8,
  "I16": torch.int16,
  "U16": torch.uint16,
  "I32": torch.int32,
  "U32": torch.uint32,
  "I64": torch.int64,
  "U64": torch.uint64,
  "F16": torch.float16,
  "BF16": torch.bfloat16,
  "F32": torch.float32,
  "F64": torch.float64,
  "C64": torch.complex64,
  "F8_E4M3": torch.float8_e4m3fn,
  "F8_E5M2": torch.float8_e5m2,
  "F8_E8M0": torch.float8_e8m0fnu,
  "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
  "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
}


@pytest.mark.parametrize("name", TORCH)
def test_takes_and_gives_every_dtype_of_torch_without_a_copy(name):
  tensor = torch.zeros(4, 6, dtype=torch.uint8).repeat(1, 8)[:, : 6 * TORCH[name].itemsize].contiguous()
  tensor = tensor.view(TORCH[name])
  taken = buffers(tensor, name)
  assert taken.tensor(0, "w") is tensor
  own = reshard.RankBuffers.allocate(matrix(name))
  view = own.tensor(0, "w").torch()
  assert view.dtype == TORCH[name] and view.shape == (4, 6)
  assert view.data_ptr() == own.tensor(0, "w").data_ptr()


def test_takes_pairs_of_four_bit_elements():
  packed = torch.zeros(4, 3, dtype=torch.uint8)
  buffers(packed, "F4")
  buffers(packed.view(torch.float4_e2m1fn_x2), "F4")
  assert reshard.RankBuffers.allocate(matrix("F4")).tensor(0, "w").torch().dtype == torch.float4_e2m1fn_x2
  refused(torch.zeros(4, 6, dtype=torch.uint8), "shape [4, 6], but [4, 3]", dtype="F4")


@pytest.mark.parametrize(
  "make",
  [
    lambda: bytearray(48),
    lambda: memoryview(bytearray(48)),
    lambda: array.array("B", bytes(48)),
    lambda: mmap.mmap(-1, 48),
    lambda: (ctypes.c_uint8 * 48)(),
    lambda: (ctypes.c_uint16 * 6 * 4)(),
    lambda: np.zeros(48, np.uint8),
    lambda: torch.zeros(48, dtype=torch.uint8),
    lambda: np.zeros((4, 6), np.uint16),
    lambda: memoryview(bytearray(48)).cast("H", (4, 6)),
  ],
)
def test_takes_bits_of_the_right_width_and_bytes_of_the_right_number(make):
  assert buffers(make()).nbytes == 48


ML_DTYPES = {
  "BF16": "bfloat16",
  "F8_E4M3": "float8_e4m3fn",
  "F8_E5M2": "float8_e5m2",
  "F8_E8M0": "float8_e8m0fnu",
  "F8_E4M3FNUZ": "float8_e4m3fnuz",
  "F8_E5M2FNUZ": "float8_e5m2fnuz",
}


@pytest.mark.parametrize("name", ML_DTYPES)
def test_takes_and_gives_dtypes_of_ml_dtypes_without_a_copy(name):
  ml_dtypes = pytest.importorskip("ml_dtypes")
  dtype = np.dtype(getattr(ml_dtypes, ML_DTYPES[name]))
  source = np.arange(24).reshape(4, 6).astype(dtype)
  own = reshard.RankBuffers.allocate(matrix(name))
  refit = reshard.InProcessRefit(reshard.plan(matrix(name), matrix(name)), buffers(source, name), own)
  source[0, 0] = 2  # after it was taken
  refit.run()
  view = own.tensor(0, "w").numpy()
  assert view.dtype == dtype and view.tobytes() == source.tobytes()
  assert view.ctypes.data == own.tensor(0, "w").data_ptr()
  target = np.zeros((4, 6), dtype)
  reshard.InProcessRefit(reshard.plan(matrix(name), matrix(name)), own, buffers(target, name)).run()
  assert target.tobytes() == source.tobytes()


def test_refuses_arrays_of_ml_dtypes_that_are_no_tensors_of_the_layout():
  ml_dtypes = pytest.importorskip("ml_dtypes")
  refused(np.zeros((6, 4), ml_dtypes.bfloat16).T, "not contiguous")
  refused(np.zeros((4, 6), ml_dtypes.float8_e4m3fn), "dtype F8_E4M3, but BF16")
  refused(np.zeros((4, 6), ml_dtypes.float8_e3m4), "numpy's dtype float8_e3m4 is none of reshard's")
  # numpy keeps each 4-bit element in a byte of its own.
  refused(np.zeros((4, 6), ml_dtypes.float4_e2m1fn), "4-bit elements in pairs", dtype="F4")
  frozen = np.zeros((4, 6), ml_dtypes.bfloat16)
  frozen.flags.writeable = False
  with pytest.raises(reshard.InvalidArgumentError, match="'w': is read-only, but a refit writes it"):
    refit_into(buffers(frozen))


def refit_into(target):
  plan = reshard.plan(matrix(), matrix())
  return reshard.InProcessRefit(plan, reshard.RankBuffers.allocate(matrix()), target)


def test_takes_a_tensor_that_requires_a_gradient_without_it():
  weight = torch.nn.Parameter(torch.ones(4, 6, dtype=torch.bfloat16))
  target = buffers(weight)
  source = buffers(torch.full((4, 6), 3, dtype=torch.bfloat16))
  reshard.InProcessRefit(reshard.plan(matrix(), matrix()), source, target).run()
  assert weight.requires_grad and torch.all(weight == 3)


class OldTorch:
  """Stands for a torch without the table of C functions: refuses to export what requires a gradient."""

  def __init__(self, tensor):
    self.tensor, self.requires_grad, self.device, self.layout = tensor, tensor.requires_grad, tensor.device, tensor.layout

  def __dlpack__(self):
    return self.tensor.__dlpack__()

  def detach(self):
    return OldTorch(self.tensor.detach())


def test_takes_what_exports_the_first_dlpack_only():
  weight = torch.ones(4, 6, dtype=torch.bfloat16, requires_grad=True)
  target = buffers(OldTorch(weight))
  refit_into(target).run()
  assert torch.all(weight == 0)
  weight.data = torch.zeros(5, 6, dtype=torch.bfloat16)
  with pytest.raises(reshard.InvalidArgumentError, match=r"shape \[5, 6\], but \[4, 6\]"):
    target.refresh()


@pytest.mark.parametrize(
  ("tensor", "texts"),
  [
    (torch.zeros(4, 6), ("dtype F32, but BF16 in hf",)),
    (torch.zeros(4, 6, dtype=torch.int16), ("dtype I16, but BF16",)),
    (torch.zeros(6, 4, dtype=torch.bfloat16), ("shape [6, 4], but [4, 6] in hf",)),
    (torch.zeros(6, 4, dtype=torch.bfloat16).t(), ("strides [1, 4] of shape [4, 6]: not contiguous",)),
    (torch.zeros(4, 8, dtype=torch.bfloat16)[:, :6], ("strides [8, 1]",)),
    (torch.zeros(1, 6, dtype=torch.bfloat16).expand(4, 6), ("strides [0, 1]",)),
    (torch.zeros(4, 6, dtype=torch.bfloat16, device="meta"), ("meta device", "no memory")),
    (torch.zeros(4, 6, dtype=torch.bfloat16).to_sparse(), ("sparse (torch.sparse_coo)", "dense")),
    (torch.quantize_per_tensor(torch.zeros(4, 6), 0.1, 0, torch.qint8), ("quantised by torch",)),
    (np.zeros((4, 6), np.float64), ("dtype F64",)),
    (np.zeros((4, 6), np.uint16)[::-1], ("strides [-6, 1]",)),
    (np.zeros((4, 6), ">u2"), ("its elements are big-endian",)),
    (np.zeros((1,) * 9, np.uint8), ("9 dimensions; at most 8",)),
    (np.array([["a"]]), ("cannot be used",)),
    ("text", ("builtins.str is no tensor",)),
    (None, ("NoneType is no tensor",)),
    ([1, 2], ("is no tensor",)),
    (3, ("is no tensor",)),
  ],
  ids=lambda x: "" if isinstance(x, tuple) else type(x).__name__,
)
def test_refuses_what_the_layout_does_not_have(tensor, texts):
  refused(tensor, *texts)


def test_refuses_fake_and_freed_tensors():
  from torch._subclasses.fake_tensor import FakeTensorMode

  with FakeTensorMode():
    fake = torch.zeros(4, 6, dtype=torch.bfloat16)
  refused(fake, "has no memory")
  freed = torch.zeros(4, 6, dtype=torch.bfloat16)
  freed.untyped_storage().resize_(0)
  refused(freed, "has no memory")


class OnDevice:
  """Stands for a tensor on a GPU: its DLPack names one."""

  def __init__(self, device):
    self.array, self.device_type = reshard.RankBuffers.allocate(matrix()).tensor(0, "w"), device

  def __dlpack__(self, **_):
    capsule = self.array.__dlpack__()
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    ctypes.cast(get(capsule, b"dltensor") + 8, ctypes.POINTER(ctypes.c_int32))[0] = self.device_type
    return capsule


@pytest.mark.parametrize(("device", "name"), [(10, "rocm:0"), (8, "metal:0"), (77, "another type")])
def test_names_the_device_that_memory_is_on(device, name):
  refused(
    OnDevice(device),
    f"is on {name}" if ":" in name else name,
    "must be in the memory of the host or of an NVIDIA GPU",
    error=reshard.UnsupportedError,
  )


def test_names_tensors_that_are_missing_or_unknown():
  layout = reshard.layout("hf", reshard.Model.from_tensors("two", {"a": ((2,), "F32"), "b": ((2,), "F32")}))
  with pytest.raises(reshard.NotFoundError, match="rank 0: no tensor 'a' and 1 more, which hf has there"):
    reshard.RankBuffers(layout, {0: {}})
  with pytest.raises(reshard.InvalidArgumentError, match=r"hf has no local tensor 'c' there \(it has 2, such as 'a'\)"):
    reshard.RankBuffers(layout, {0: {"c": torch.zeros(2)}})
  with pytest.raises(reshard.InvalidArgumentError, match="rank 7"):
    reshard.RankBuffers(layout, {7: {}})
  with pytest.raises(TypeError, match="mapping"):
    reshard.RankBuffers(layout, {0: [torch.zeros(2)]})


def test_refuses_targets_that_overlap_or_cannot_be_written():
  memory = torch.zeros(6, dtype=torch.bfloat16)
  layout = reshard.layout("hf", reshard.Model.from_tensors("two", {"a": ((4,), "BF16"), "b": ((4,), "BF16")}))
  plan = reshard.plan(layout, layout)
  shared = reshard.RankBuffers(layout, {0: {"a": memory[:4], "b": memory[2:]}})
  own = reshard.RankBuffers.allocate(layout)
  with pytest.raises(reshard.InvalidArgumentError, match="target tensor 'b': shares memory with 'a' of rank 0"):
    reshard.InProcessRefit(plan, own, shared)
  reshard.InProcessRefit(plan, shared, own).run()  # two sources may be one
  with pytest.raises(reshard.InvalidArgumentError, match="shares memory with source tensor 'a'"):
    reshard.InProcessRefit(plan, own, own)
  frozen = reshard.RankBuffers(layout, {0: {"a": bytes(8), "b": bytes(8)}})
  with pytest.raises(reshard.InvalidArgumentError, match="target tensor 'a': is read-only, but a refit writes it"):
    reshard.InProcessRefit(plan, own, frozen)


def test_a_buffer_cannot_be_resized_while_it_is_held():
  memory = bytearray(48)
  held = buffers(memory)
  with pytest.raises(BufferError):
    memory.append(0)
  del held
  gc.collect()
  memory.append(0)


def test_holds_what_it_was_given_and_no_longer():
  tensor = torch.zeros(4, 6, dtype=torch.bfloat16)
  held = buffers(tensor)
  reference = weakref.ref(tensor)
  del tensor
  gc.collect()
  assert reference() is not None
  del held
  gc.collect()
  assert reference() is None


def test_exported_memory_outlives_its_buffers():
  own = reshard.RankBuffers.allocate(matrix("F32"))
  view, raw = own.tensor(0, "w").torch(), own.tensors(0)["w"].raw()
  del own
  gc.collect()
  view.fill_(1)
  assert bytes(raw[:4]) == b"\x00\x00\x80\x3f" and raw.nbytes == 96 and not raw.readonly


@pytest.mark.parametrize(
  "change",
  [
    lambda t: t.resize_(100, 100),
    lambda t: t.set_(torch.zeros(2, 2, dtype=torch.bfloat16)),
    lambda t: setattr(t, "data", torch.zeros(4, 7, dtype=torch.bfloat16)),
    lambda t: t.untyped_storage().resize_(0),
    lambda t: t.t_(),
    lambda t: setattr(t, "data", torch.zeros(4, 6)),
  ],
)
def test_notices_a_tensor_that_was_freed_or_resized(change):
  tensor = torch.zeros(4, 6, dtype=torch.bfloat16)
  held = buffers(tensor)
  held.refresh()
  change(tensor)
  for _ in range(2):
    with pytest.raises(reshard.InvalidArgumentError, match="rank 0: tensor 'w': "):
      held.refresh()


def test_uses_a_tensor_where_it_is_now():
  source, plan = torch.ones(4, 6, dtype=torch.bfloat16), reshard.plan(matrix(), matrix())
  given = {"w": torch.zeros(4, 6, dtype=torch.bfloat16)}
  target = reshard.RankBuffers(matrix(), {0: given})
  refit = reshard.InProcessRefit(plan, buffers(source), target)
  source.data = torch.full((4, 6), 2, dtype=torch.bfloat16)
  given["w"] = torch.zeros(4, 6, dtype=torch.bfloat16)
  refit.run()
  assert torch.all(given["w"] == 2)
  del given["w"]
  with pytest.raises(reshard.InvalidArgumentError, match="is no longer in the mapping"):
    refit.run()


def test_asks_a_callable_again():
  layer = torch.nn.Linear(6, 4, bias=False, dtype=torch.bfloat16)
  held = reshard.RankBuffers(matrix(), {0: lambda: {"w": layer.weight}})
  layer.weight = torch.nn.Parameter(torch.zeros(4, 6, dtype=torch.bfloat16))
  held.refresh()
  assert held.tensor(0, "w") is layer.weight


def test_array_of_no_elements_and_scalars():
  buffers(torch.zeros(0, 6, dtype=torch.bfloat16), shape=(0, 6))
  buffers(torch.tensor(1.0), "F32", ())
  refused(torch.zeros(1), dtype="F32", shape=())


@pytest.mark.parametrize("name", ["mxfp8", "fp8_block", "nvfp4_swizzled", "fp8_channel", "fp8_tensor"])
def test_a_matrix_has_the_same_codes_whatever_the_number_of_threads(name):
  matrix = np.random.default_rng(1).standard_normal((1100, 1024), dtype=np.float32)  # enough for four threads
  alone, together = (reshard.quantise(matrix, name, threads=n) for n in (1, 3))
  parts = [(alone.data, together.data), (alone.scales, together.scales), (alone.factor, together.factor)]
  for one, other in parts:
    assert (one is None) == (other is None)
    assert one is None or one.raw() == other.raw()
  values = [
    reshard.dequantise(alone.data, alone.scales, alone.factor, format=name, dtype="float32", threads=n) for n in (1, 3)
  ]
  assert values[0].raw() == values[1].raw()
  assert reshard.amax(matrix, threads=3) == np.abs(matrix).max()
  with pytest.raises(reshard.InvalidArgumentError, match="threads is -1; it must be from 0 to 4096"):
    reshard.quantise(matrix, name, threads=-1)
