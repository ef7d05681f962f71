# SPDX-License-Identifier: Apache-2.0
"""Law: tensors of a GPU are taken as they are, or refused with what would be right.

test_gpu.py runs these, and the other gpu_*cases.py, in a process that has the emulated GPU in place of CUDA's driver. On a
machine with a GPU and torch for it, those that are not about the emulated one run with torch's tensors:
RESHARD_TEST_GPU=0 pytest gpu_cases.py gpu_refit_cases.py gpu_session_cases.py."""

import gc
import os

import pytest
import torch

import reshard
from gpu_memory import CudaArray, TableTensor, buffers, emulated, gpu, matrix, numbers, on_gpu, read
from ranks import in_threads
from reshard import hf
from small_models import assert_equal, model, values, vllm_slices, zeros


def refused(tensor, *texts, error=reshard.InvalidArgumentError, **options):
  with pytest.raises(error) as raised:
    buffers(tensor, **options)
  for text in texts:
    assert text in str(raised.value)


def test_takes_and_gives_memory_of_a_gpu():
  host = numbers()
  tensor = gpu().tensor(host)
  taken = buffers(tensor)
  assert taken.device == "cuda:0" and ", cuda:0>" in repr(taken)
  assert taken.tensor(0, "w") is tensor
  own = reshard.RankBuffers.allocate(matrix(), device="cuda:0")
  assert own.device == "cuda:0" and own.tensor(0, "w").device == "cuda:0"
  reshard.InProcessRefit(reshard.plan(matrix(), matrix()), taken, own).run()
  copy = gpu().tensor(torch.zeros_like(host))
  reshard.InProcessRefit(reshard.plan(matrix(), matrix()), own, buffers(copy)).run()
  assert torch.equal(gpu().read(copy), host)


def test_memory_of_its_own_is_zero_and_exported_where_it_is():
  own = reshard.RankBuffers.allocate(matrix(), device="cuda")
  tensor = own.tensor(0, "w")
  assert tensor.__dlpack_device__() == (2, 0) and tensor.data_ptr() != 0
  assert "cuda:0" in repr(tensor)
  copy = gpu().tensor(numbers())
  reshard.InProcessRefit(reshard.plan(matrix(), matrix()), own, buffers(copy)).run()
  assert not gpu().read(copy).any()
  again = buffers(tensor)  # of its DLPack
  assert again.device == "cuda:0" and again.nbytes == 48
  for take in (tensor.numpy, tensor.raw):
    with pytest.raises(reshard.UnsupportedError, match=r"the memory is on cuda:0.*take torch\(\)"):
      take()


def test_devices_have_torchs_names():
  for name in (None, "cpu", torch.device("cpu")):
    assert reshard.RankBuffers.allocate(matrix(), device=name).device == "cpu"
  assert reshard.RankBuffers.allocate(matrix(), device=torch.device("cuda", 0)).device == "cuda:0"
  for name in ("gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:0 ", "rocm:0"):
    with pytest.raises(reshard.InvalidArgumentError, match="must be cpu, cuda or cuda:N"):
      reshard.RankBuffers.allocate(matrix(), device=name)
  with pytest.raises(reshard.NotFoundError, match="GPU 64: CUDA sees"):
    reshard.RankBuffers.allocate(matrix(), device="cuda:64")


@emulated
@pytest.mark.parametrize("versioned", [True, False])
@pytest.mark.parametrize("offset", [0, 2, 6, 64])
def test_takes_dlpack_of_any_version_and_offset(versioned, offset):
  host = numbers()
  tensor = gpu().tensor(host, offset=offset)
  tensor.versioned = versioned
  target = gpu().tensor(torch.zeros_like(host), offset=offset)
  reshard.InProcessRefit(reshard.plan(matrix(), matrix()), buffers(tensor), buffers(target)).run()
  assert torch.equal(gpu().read(target), host)


@emulated
def test_a_look_asks_the_driver_nothing():
  tensor = gpu().tensor(numbers(), TableTensor)
  source = buffers(tensor)
  gpu().forget()
  source.refresh()
  assert gpu().calls("cuCtxPushCurrent") == 0 and torch.equal(gpu().read(source.tensor(0, "w")), numbers())


@emulated
def test_takes_the_cuda_array_interface():
  host = numbers(torch.float32)
  tensor, target = gpu().tensor(host, CudaArray), gpu().tensor(torch.zeros_like(host), CudaArray)
  taken = buffers(tensor, "F32")
  assert taken.device == "cuda:0"
  reshard.InProcessRefit(reshard.plan(matrix("F32"), matrix("F32")), taken, buffers(target, "F32")).run()
  assert torch.equal(gpu().read(target), host)
  refused(gpu().tensor(host, CudaArray), "rank 0: tensor 'w': dtype F32, but BF16")
  bits = gpu().tensor(numbers(torch.uint16), CudaArray)
  assert buffers(bits).nbytes == 48


@emulated
def test_an_array_whose_address_is_of_no_gpu_is_refused():
  class Lies(CudaArray):
    address = property(lambda self: 4096)

  tensor = Lies(gpu(), numbers(torch.float32))
  refused(tensor, "rank 0: tensor 'w': cannot be used: its address is not in the memory of a GPU", dtype="F32")


@emulated
@pytest.mark.parametrize(
  ("change", "text"),
  [
    ({"typestr": ">f4"}, "big-endian"),
    ({"typestr": "<V4"}, "elements of type '<V4'"),
    ({"strides": (24,)}, "1 strides of 2 dimensions"),
    ({"strides": (4, 16)}, "not contiguous"),
    ({"strides": (24, 3)}, "not contiguous"),
    ({"mask": 1}, "it has a mask"),
    ({"shape": (1 << 40, 1 << 40)}, "size that overflows"),
    ({"shape": (-1, 6)}, "negative dimension"),
    ({"shape": None}, "lacks 'shape', which is a tuple of integers"),
    ({"data": None}, "lacks 'data', which is (address, read-only)"),
    ({"stream": 2}, "default stream of each thread"),
  ],
)
def test_an_array_interface_that_is_wrong_is_refused(change, text):
  class Changed(CudaArray):
    __cuda_array_interface__ = property(lambda self: CudaArray.__cuda_array_interface__.fget(self) | change)

  refused(gpu().tensor(numbers(torch.float32), Changed), text, dtype="F32")


@emulated
def test_what_memory_of_the_host_must_be_that_of_a_gpu_must_be_too():
  refused(gpu().tensor(numbers().t()), "not contiguous", shape=(6, 4))
  refused(gpu().tensor(numbers(torch.float16)), "dtype F16, but BF16")
  refused(gpu().tensor(numbers(shape=(4, 5))), "shape [4, 5], but [4, 6]")
  freed = gpu().tensor(numbers())
  freed.free()
  refused(freed, "has no memory (freed")
  tensor = gpu().tensor(numbers())
  tensor.read_only = True
  source = buffers(gpu().tensor(numbers()))
  reshard.InProcessRefit(reshard.plan(matrix(), matrix()), buffers(tensor), source)
  with pytest.raises(reshard.InvalidArgumentError, match="target tensor 'w': is read-only"):
    reshard.InProcessRefit(reshard.plan(matrix(), matrix()), source, buffers(tensor))
  with pytest.raises(reshard.InvalidArgumentError, match="shares memory with source tensor 'w'"):
    reshard.InProcessRefit(reshard.plan(matrix(), matrix()), source, buffers(source.tensor(0, "w")))


def test_all_tensors_of_a_side_are_in_one_place():
  layout = reshard.layout("hf", reshard.Model.from_tensors("two", {"a": ((2,), "F32"), "b": ((2,), "F32")}))
  there, here = gpu().tensor(torch.zeros(2)), torch.zeros(2)
  with pytest.raises(reshard.InvalidArgumentError, match="rank 0: tensor 'b': is on the host, but 'a' of rank 0 is on cuda:0"):
    reshard.RankBuffers(layout, {0: {"a": there, "b": here}})
  with pytest.raises(reshard.InvalidArgumentError, match="all must be on one GPU, or all on the host"):
    reshard.RankBuffers(layout, {0: {"a": here, "b": there}})


@emulated
def test_tensors_of_two_gpus_are_named():
  layout = reshard.layout("hf", reshard.Model.from_tensors("two", {"a": ((2,), "F32"), "b": ((2,), "F32")}))
  a, b = (gpu().tensor(torch.zeros(2)) for _ in range(2))
  b.number = 1
  with pytest.raises(reshard.InvalidArgumentError, match="tensor 'b': is on cuda:1, but 'a' of rank 0 is on cuda:0"):
    reshard.RankBuffers(layout, {0: {"a": a, "b": b}})
  a.number = b.number = 7
  with pytest.raises(reshard.NotFoundError, match="rank 0: tensor 'a': is on cuda:7: GPU 7: CUDA sees 2"):
    reshard.RankBuffers(layout, {0: {"a": a, "b": b}})


@emulated
def test_a_tensor_that_is_not_where_it_says_is_found_before_anything_moves():
  tensor, target = gpu().tensor(numbers()), buffers(gpu().tensor(numbers()))
  tensor.number = 1
  source = buffers(tensor)
  with pytest.raises(reshard.UnsupportedError, match="the source is on cuda:1, the target on cuda:0"):
    reshard.InProcessRefit(reshard.plan(matrix(), matrix()), source, target)
  on_one = buffers(tensor), buffers(gpu().tensor(numbers()))
  on_one[1].tensor(0, "w").number = 1
  on_one[1].refresh()
  with pytest.raises(reshard.InvalidArgumentError, match="is in the memory of GPU 0, not on GPU 1"):
    reshard.InProcessRefit(reshard.plan(matrix(), matrix()), *on_one)


def test_a_side_on_the_host_needs_a_session():
  source, target = buffers(numbers()), buffers(gpu().tensor(torch.zeros(4, 6, dtype=torch.bfloat16)))
  with pytest.raises(reshard.UnsupportedError, match=r"the source is on cpu, the target on cuda:0; .*reshard.local"):
    reshard.InProcessRefit(reshard.plan(matrix(), matrix()), source, target)
  for group in reshard.local(1):
    with reshard.Session(group, source=matrix(), source_tensors=source, target=matrix(), target_tensors=target) as session:
      session.refit(1)
  assert torch.equal(gpu().read(target.tensor(0, "w")), numbers())


def test_published_versions_are_memory_of_the_host():
  with pytest.raises(reshard.InvalidArgumentError, match="is not memory of the host"):
    reshard.PublishedVersion(gpu().tensor(torch.zeros(8, dtype=torch.uint8)))


def bytes_of(tensor):
  """The bytes of a reshard.Tensor on a GPU or the host."""
  if tensor is None or tensor.device == "cpu":
    return None if tensor is None else bytes(tensor.raw())
  layout = matrix("U8", (tensor.nbytes,))
  whole = CudaBytes(tensor.data_ptr(), tensor.nbytes)
  return bytes(reshard.RankBuffers(layout, {0: {"w": whole}}).on_host().tensor(0, "w").raw())


class CudaBytes:
  def __init__(self, address, nbytes):
    self.__cuda_array_interface__ = {"shape": (nbytes,), "typestr": "|u1", "data": (address, False), "version": 3}


@pytest.mark.parametrize("format", ["mxfp8", "mxfp8_swizzled", "fp8_block", "fp8_channel", "fp8_tensor", "mxfp4", "nvfp4"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_matrix_is_quantised_on_the_gpu_to_the_bytes_of_the_host(format, dtype):
  host = torch.randn(96, 160, generator=torch.Generator().manual_seed(3)).to(dtype)
  want = reshard.quantise(host, format)
  there = gpu().tensor(host)
  got = reshard.quantise(there, format)
  assert got.data.device == "cuda:0"
  parts = [(getattr(got, name), getattr(want, name)) for name in ("data", "scales", "factor")]
  assert all(bytes_of(mine) == bytes_of(its) for mine, its in parts)
  values = reshard.dequantise(got.data, got.scales, got.factor, format=format, dtype="float32")
  assert bytes_of(values) == bytes_of(
    reshard.dequantise(want.data, want.scales, want.factor, format=format, dtype="float32")
  )
  assert reshard.amax(there) == reshard.amax(host)
  for mixed in (
    lambda: reshard.quantise(there, format, data=want.data),
    lambda: reshard.dequantise(got.data, want.scales, got.factor, format=format),
    lambda: reshard.dequantise(want.data, want.scales, want.factor, format=format, out=there),
  ):
    with pytest.raises(reshard.InvalidArgumentError, match="but must be on .* as the others"):
      mixed()


@emulated
def test_a_matrix_is_quantised_after_the_work_of_the_stream():
  stream, host = gpu().stream(), numbers(torch.float32, (4, 64))
  there = gpu().tensor(torch.zeros(4, 64))
  gpu().write(there, host, stream)
  assert reshard.amax(there, stream=stream) == 255
  gpu().write(there, host * 2, stream)
  assert bytes_of(reshard.quantise(there, "mxfp8", stream=stream).data) == bytes_of(reshard.quantise(host * 2, "mxfp8").data)


def test_tensors_of_a_checkpoint_have_the_same_fingerprints_on_a_gpu(tmp_path):
  reshard.synthesize("demo-moe", tmp_path / "hf", layers=1)
  of = reshard.open_model(tmp_path / "hf")
  target = reshard.layout("vllm:tp=2", of)
  there, here = (reshard.RankBuffers.allocate(target, device=device) for device in ("cuda", "cpu"))
  for memory in (there, here):
    reshard.load_weights(of, memory)
  assert reshard.fingerprints(there).dict() == reshard.fingerprints(here).dict()


def test_checkpoints_are_saved_from_and_loaded_into_a_gpu(tmp_path):
  of = model()
  layout = reshard.layout("vllm:tp=2", of)
  given = {rank: vllm_slices(values(of), 2, rank) for rank in (0, 1)}
  hf.save(tmp_path / "one", layout, {rank: on_gpu(tensors) for rank, tensors in given.items()})

  def body(group):
    hf.save(tmp_path / "two", layout, on_gpu(given[group.rank]), group=group)

  in_threads(2, body)
  for folder in ("one", "two"):
    for rank in (0, 1):
      there = on_gpu(zeros(layout, rank))
      hf.load(tmp_path / folder, layout, rank, there)
      assert_equal(read(there), given[rank])


def test_copies_on_the_host_are_made_of_tensors_of_a_gpu_only():
  there, here = buffers(gpu().tensor(numbers())), buffers(numbers())
  assert here.on_host() is here
  copy = there.on_host()
  assert copy.device == "cpu" and torch.equal(copy.tensor(0, "w").torch(), numbers())


@emulated
def test_memory_goes_back_to_the_gpu_with_its_last_user():
  gc.collect()
  before = gpu().allocated()
  own = reshard.RankBuffers.allocate(matrix(shape=(512, 1024)), device="cuda")
  assert gpu().allocated() - before == 1 << 20
  tensor = own.tensor(0, "w")
  del own
  gc.collect()
  assert gpu().allocated() - before == 1 << 20
  del tensor
  gc.collect()
  assert gpu().allocated() == before


@emulated
def test_short_memory_and_failed_calls_are_exceptions():
  with gpu().limited(gpu().allocated() + 1000), pytest.raises(reshard.IoError, match="bytes"):
    reshard.RankBuffers.allocate(matrix(shape=(512, 1024)), device="cuda")
  refit = reshard.InProcessRefit(
    reshard.plan(matrix(), matrix()), buffers(gpu().tensor(numbers())), buffers(gpu().tensor(numbers()))
  )
  gpu().fail("cuLaunchKernel", 700)
  with pytest.raises(reshard.IoError, match="cuLaunchKernel"):
    refit.run()
  refit.run()


@emulated
def test_a_forked_process_is_told_that_cuda_does_not_survive():
  reshard.RankBuffers.allocate(matrix(), device="cuda")
  reader, writer = os.pipe()
  if (child := os.fork()) == 0:
    text = "nothing was raised"
    try:
      reshard.RankBuffers.allocate(matrix(), device="cuda")
    except reshard.InvalidArgumentError as error:
      text = str(error)
    os.write(writer, text.encode())
    os._exit(0)
  os.waitpid(child, 0)
  assert "CUDA does not survive a fork" in os.read(reader, 1000).decode()
