# SPDX-License-Identifier: Apache-2.0
"""Law: a refit inside one GPU follows the streams that were named, and waits for nothing."""

import pytest
import torch

import reshard
from gpu_memory import (
  WAITS, CudaArray, Stream, TableTensor, buffers, emulated, engine_memory, gpu, is_emulated, matrix, numbers, on_gpu, read, sides,
)  # fmt: skip
from ranks import in_threads
from small_models import assert_equal, values, vllm_slices


@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_a_collocated_refit_gives_every_rank_its_shards(kind):
  of, source, target, given = sides(kind)
  mine, theirs = on_gpu(given), engine_memory(target)
  refit = reshard.InProcessRefit(
    reshard.plan(source, target), reshard.RankBuffers(source, {0: mine}), reshard.RankBuffers(target, theirs)
  )
  for version in (1, 2):
    given = values(of, version)
    for name, tensor in mine.items():
      gpu().write(tensor, given[name])
    report = refit.run()
    assert report.bytes == reshard.plan(source, target).bytes_total
    for rank in (0, 1):
      assert_equal(read(theirs[rank]), vllm_slices(given, 2, rank))


def test_a_part_of_the_model_moves_alone():
  of, source, target, given = sides()
  theirs = engine_memory(target)
  plan = reshard.plan(source, target, only="model.norm.weight")
  refit = reshard.InProcessRefit(plan, reshard.RankBuffers(source, {0: on_gpu(given)}), reshard.RankBuffers(target, theirs))
  assert refit.run().bytes == plan.bytes_total
  for rank in (0, 1):
    for name, tensor in read(theirs[rank]).items():
      assert torch.equal(tensor, given[name]) if name == "model.norm.weight" else not tensor.any()


@pytest.mark.parametrize("quant", ["mxfp8,quant_grid=local", "fp8_channel"])
def test_a_collocated_refit_quantises_as_sessions_on_the_host_do(quant):
  of, source, _, given = sides()
  target = reshard.layout(f"vllm:tp=2,quant={quant}", of)
  served = reshard.RankBuffers.allocate(target, device="cuda")
  refit = reshard.InProcessRefit(reshard.plan(source, target), reshard.RankBuffers(source, {0: on_gpu(given)}), served)
  refit.run()
  expected = reshard.RankBuffers.allocate(target)

  def body(group):
    tensors = given if group.rank == 0 else None
    with reshard.Session(
      group, source=source, source_tensors=tensors, target=target, target_tensors=expected.tensors(group.rank)
    ) as session:
      session.refit(1)

  in_threads(2, body)
  assert reshard.fingerprints(served).dict() == reshard.fingerprints(expected).dict()
  part = reshard.plan(source, target, only="model.layers.0.*")
  with pytest.raises(reshard.UnsupportedError, match="moves all tensors on a GPU"):
    reshard.InProcessRefit(part, reshard.RankBuffers(source, {0: on_gpu(given)}), served)


@emulated
def test_run_returns_before_the_gpu_has_begun():
  _, source, target, given = sides()
  stream = gpu().stream()
  theirs = engine_memory(target)
  refit = reshard.InProcessRefit(
    reshard.plan(source, target), reshard.RankBuffers(source, {0: on_gpu(given)}), reshard.RankBuffers(target, theirs)
  )
  gpu().forget()
  for handle in (stream, stream.cuda_stream):
    refit.run(stream=handle)
  assert [gpu().calls(call) for call in WAITS] == [0] * len(WAITS)
  assert gpu().calls("cuLaunchKernel") == 2 and gpu().calls("cuEventRecord") == 0
  assert not any(tensor.any() for tensor in read(theirs[0], gpu().stream()).values())  # another stream ran
  assert_equal(read(theirs[0], stream), vllm_slices(given, 2, 0))


@emulated
def test_work_of_the_stream_comes_first_and_later_work_sees_the_result():
  source, target = gpu().tensor(torch.zeros(4, 6, dtype=torch.bfloat16)), gpu().tensor(numbers())
  stream = gpu().stream()
  refit = reshard.InProcessRefit(reshard.plan(matrix(), matrix()), buffers(source), buffers(target))
  for i in (1, 2):
    gpu().write(source, numbers() + i, stream)  # not waited for
    refit.run(stream=stream)
    assert torch.equal(gpu().read(target, stream), numbers() + i)


@emulated
def test_two_streams_are_ordered_without_waiting():
  tensors = [gpu().tensor(torch.zeros(4, 6, dtype=torch.bfloat16)) for _ in range(2)]
  streams = [gpu().stream() for _ in range(2)]
  source, target = (buffers(tensor, stream=stream) for tensor, stream in zip(tensors, streams, strict=True))
  refit = reshard.InProcessRefit(reshard.plan(matrix(), matrix()), source, target)
  gpu().write(tensors[0], numbers(), streams[0])
  gpu().forget()
  refit.run()
  gpu().write(tensors[0], numbers() + 1, streams[0])  # after the refit has read the first
  assert [gpu().calls(call) for call in WAITS] == [0] * len(WAITS)
  assert (gpu().calls("cuEventRecord"), gpu().calls("cuStreamWaitEvent")) == (2, 2)
  assert torch.equal(gpu().read(tensors[0], streams[0]), numbers() + 1)
  assert torch.equal(gpu().read(tensors[1], streams[1]), numbers())


@emulated
def test_a_refit_allocates_nothing_after_the_first():
  _, source, target, given = sides()
  streams = [gpu().stream() for _ in range(2)]
  refit = reshard.InProcessRefit(
    reshard.plan(source, target),
    reshard.RankBuffers(source, {0: on_gpu(given)}, stream=streams[0]),
    reshard.RankBuffers(target, engine_memory(target), stream=streams[1]),
  )
  refit.run()
  gpu().forget()
  for _ in range(3):
    refit.run()
  assert [gpu().calls(call) for call in (*WAITS, "cuEventCreate", "cuStreamCreate")] == [0] * (len(WAITS) + 2)
  assert gpu().calls("cuLaunchKernel") == 3


def test_tensors_that_moved_are_found():
  first, second = (gpu().tensor(numbers() + i) for i in (0, 1))
  given = {"w": first}
  target = gpu().tensor(torch.zeros(4, 6, dtype=torch.bfloat16))
  source = reshard.RankBuffers(matrix(), {0: lambda: given})
  refit = reshard.InProcessRefit(reshard.plan(matrix(), matrix()), source, buffers(target))
  refit.run()
  given["w"] = second
  refit.run()
  assert torch.equal(gpu().read(target), numbers() + 1)
  given["w"] = numbers()  # of the host
  with pytest.raises(reshard.UnsupportedError, match="the source is on cpu, the target on cuda:0"):
    refit.run()
  assert source.device == "cpu"


@emulated
def test_a_tensor_that_was_freed_is_named():
  tensor = gpu().tensor(numbers())
  source = buffers(tensor)
  refit = reshard.InProcessRefit(reshard.plan(matrix(), matrix()), source, buffers(gpu().tensor(numbers())))
  tensor.free()
  with pytest.raises(reshard.InvalidArgumentError, match="rank 0: source tensor 'w': has no memory"):
    refit.run()


@emulated
def test_every_form_of_a_stream_is_taken():
  stream = gpu().stream()

  class Protocol:
    def __init__(self, said):
      self.said = said

    def __cuda_stream__(self):
      return self.said

  class Attribute:
    __cuda_stream__ = (0, stream.cuda_stream)

  source, target = gpu().tensor(numbers()), gpu().tensor(numbers())
  refit = reshard.InProcessRefit(reshard.plan(matrix(), matrix()), buffers(source), buffers(target))
  for i, form in enumerate((stream, stream.cuda_stream, Protocol((0, stream.cuda_stream)), Attribute())):
    gpu().write(source, numbers() + i, stream)
    refit.run(stream=form)
    assert torch.equal(gpu().read(target, stream), numbers() + i)
  for form in (None, 0, 1, Protocol((0, 0))):  # the legacy default stream
    gpu().write(source, numbers() + 9)
    refit.run(stream=form)
    assert torch.equal(gpu().read(target), numbers() + 9)
  for form, text in (
    ("cuda", "a handle"), (True, "a handle"), (1.5, "a handle"), (Protocol(7), "tuple"), (Protocol((0,)), "tuple"),
  ):  # fmt: skip
    with pytest.raises(TypeError, match=text):
      refit.run(stream=form)
  with pytest.raises(reshard.UnsupportedError, match="version 1 of __cuda_stream__"):
    refit.run(stream=Protocol((1, 0)))
  with pytest.raises(reshard.InvalidArgumentError, match="default stream of each thread"):
    refit.run(stream=2)
  for form in (-1, 1 << 64):
    with pytest.raises(TypeError, match="an int from 0 on that fits 64 bits"):
      refit.run(stream=form)
  with pytest.raises(reshard.InvalidArgumentError, match="stream: is of cuda:1, but the tensors are on cuda:0"):
    refit.run(stream=Stream(gpu(), device_index=1))


@emulated
def test_exporters_are_told_the_stream():
  tensor = gpu().tensor(numbers())
  buffers(tensor)
  stream = gpu().stream()
  source = buffers(tensor, stream=stream)
  assert tensor.asked == [1, stream.cuda_stream]
  refit = reshard.InProcessRefit(reshard.plan(matrix(), matrix()), source, buffers(gpu().tensor(numbers())))
  other = gpu().stream()
  refit.run(stream=other)
  assert tensor.asked[-1] == other.cuda_stream


@emulated
def test_the_current_stream_of_a_tensors_library_is_the_default():
  source, target = (gpu().tensor(numbers() * i, TableTensor) for i in (1, 0))
  refit = reshard.InProcessRefit(reshard.plan(matrix(), matrix()), buffers(source), buffers(target))
  stream, other = gpu().stream(), gpu().stream()
  try:
    for i, current in enumerate((stream, other), 1):
      TableTensor.stream = current.cuda_stream
      gpu().write(source, numbers() + i, current)
      refit.run()
      assert torch.equal(gpu().read(target, current), numbers() + i)
    for group in reshard.local(1):
      with reshard.Session(
        group, source=matrix(), source_tensors={"w": source}, target=matrix(), target_tensors={"w": target}
      ) as session:
        TableTensor.stream = stream.cuda_stream
        gpu().write(source, numbers() + 7, stream)
        session.refit(1)
        assert torch.equal(gpu().read(target), numbers() + 7)
  finally:
    TableTensor.stream = 0


@emulated
def test_work_of_a_producer_is_awaited_on_the_gpu():
  producer, stream = gpu().stream(), gpu().stream()
  source = gpu().tensor(torch.zeros(4, 6), CudaArray, stream=producer.cuda_stream)
  target = gpu().tensor(torch.zeros(4, 6))
  refit = reshard.InProcessRefit(reshard.plan(matrix("F32"), matrix("F32")), buffers(source, "F32"), buffers(target, "F32"))
  gpu().write(source, numbers(torch.float32), producer)
  gpu().forget()
  refit.run(stream=stream)
  assert [gpu().calls(call) for call in WAITS] == [0] * len(WAITS)
  assert torch.equal(gpu().read(target, stream), numbers(torch.float32))


@emulated
def test_who_takes_memory_by_dlpack_waits_for_refits_before():
  own = reshard.RankBuffers.allocate(matrix(), device="cuda")
  stream, consumer = gpu().stream(), gpu().stream()
  refit = reshard.InProcessRefit(reshard.plan(matrix(), matrix()), buffers(gpu().tensor(numbers())), own)
  refit.run(stream=stream)
  tensor = own.tensor(0, "w")
  gpu().forget()
  tensor.__dlpack__(stream=-1)
  assert gpu().calls("cuStreamWaitEvent") == 0
  tensor.__dlpack__(stream=consumer.cuda_stream, max_version=(1, 3))
  assert (gpu().calls("cuStreamWaitEvent"), gpu().calls("cuStreamSynchronize")) == (1, 0)
  copy = torch.empty(48, dtype=torch.uint8)
  gpu()._copy(copy.data_ptr(), tensor.data_ptr(), 48, consumer)
  consumer.synchronize()
  assert torch.equal(copy.view(torch.bfloat16).view(4, 6), numbers())


@pytest.mark.skipif(is_emulated(), reason="needs torch on a GPU: this process has the emulated one")
def test_torch_takes_the_memory_without_a_copy_and_its_current_stream_is_used():
  own = reshard.RankBuffers.allocate(matrix(), device=gpu().device)
  tensor = own.tensor(0, "w").torch()
  assert tensor.is_cuda and tensor.data_ptr() == own.tensor(0, "w").data_ptr() and not tensor.any()
  source, stream = torch.zeros(4, 6, dtype=torch.bfloat16, device=gpu().device), torch.cuda.Stream()
  refit = reshard.InProcessRefit(reshard.plan(matrix(), matrix()), buffers(source), own)
  with torch.cuda.stream(stream):
    torch.cuda._sleep(10**8)
    source.copy_(numbers().pin_memory(), non_blocking=True)
    refit.run()
    assert not stream.query()
    copy = tensor.clone()
  stream.synchronize()
  assert torch.equal(copy.cpu(), numbers())


@pytest.mark.skipif(is_emulated(), reason="the emulated GPU has no graphs")
def test_a_graph_of_torch_repeats_a_refit():
  stream = torch.cuda.Stream()
  with torch.cuda.stream(stream):  # All of it: a capture takes no other stream along.
    own = reshard.RankBuffers.allocate(matrix(), device=gpu().device, stream=stream)
    source = gpu().tensor(numbers())
    refit = reshard.InProcessRefit(reshard.plan(matrix(), matrix()), buffers(source), own)
    refit.run()
  stream.synchronize()
  graph = torch.cuda.CUDAGraph()
  with torch.cuda.graph(graph, stream=stream):
    refit.run()
  for version in (2, 3):
    gpu().write(source, numbers() * version, stream)
    with torch.cuda.stream(stream):
      graph.replay()
    stream.synchronize()
    assert torch.equal(own.tensor(0, "w").torch().cpu(), numbers() * version)
