# SPDX-License-Identifier: Apache-2.0
"""Law: adapters move torch's tensors of a GPU without the host's memory in between, unless they must, and then correctly.

With a stand-in for torch's CUDA tensors (gpu_torch.py), because torch for CPUs has none; run as gpu_cases.py is."""

import asyncio

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard

import gpu_torch
import reshard
from gpu_memory import gpu, is_emulated
from gpu_torch import DEVICE, CudaTensor, TorchStream, cuda
from ranks import in_threads
from reshard import _gpus
from reshard.dtensor import Refit, xferdtensor
from reshard.dtensor._memory import placed
from reshard.engines.link import Link
from reshard.engines.stream import Stream, even_pieces
from reshard.megatron import CopyService
from test_stream import tensors

if is_emulated():
  gpu_torch.install()
pytestmark = pytest.mark.skipif(not is_emulated(), reason="has a stand-in for torch's CUDA tensors")

ROWS, COLUMNS = [Shard(0)], [Shard(1)]


def matrix(dtype=torch.float32):
  return torch.arange(48).view(6, 8).to(dtype)


def host(tensor):
  return tensor.cpu() if isinstance(tensor, CudaTensor) else tensor


def test_the_home_of_a_side_is_the_gpu_that_has_it_all():
  assert reshard.why_no_gpu() is None and "CUDA sees 2" in str(reshard.why_no_gpu(9))
  here, there = torch.zeros(2), cuda(torch.zeros(2))
  assert _gpus.home_of([there, there, torch.zeros(0)]) == DEVICE
  assert _gpus.home_of([here, there]) == _gpus.home_of([]) == _gpus.HOST
  assert _gpus.common_homes([there], [here]) == [DEVICE, _gpus.HOST]
  assert _gpus.is_at_home(there, DEVICE) and not _gpus.is_at_home(here, DEVICE)
  assert not _gpus.is_at_home(cuda(matrix()).t(), DEVICE)
  assert _gpus.why_not(torch.device("meta")) == "meta is no NVIDIA GPU"


@pytest.mark.parametrize("kinds", [(cuda, cuda), (cuda, torch.clone), (torch.clone, cuda)])
def test_xferdtensor_between_ranks_whose_shards_are_on_a_gpu(kinds):
  full = matrix()

  def body(group):
    me = group.rank
    src = kinds[0](full[me * 3 : me * 3 + 3])
    dst = kinds[1](torch.zeros(6, 4))
    for step in (1, 2):
      src.copy_(full[me * 3 : me * 3 + 3] * step)
      xferdtensor(src, [0, 1], ROWS, dst, [0, 1], COLUMNS, group)
      assert torch.equal(host(dst), full[:, me * 4 : me * 4 + 4] * step)

  in_threads(2, body)


def test_shards_with_gaps_and_shared_memory_are_copied_on_the_gpu():
  base = cuda(matrix())
  shards = placed([{"a": base.t(), "b": cuda(matrix())}, {"a": cuda(matrix())}])
  assert [side.home for side in shards] == [DEVICE, DEVICE]
  assert shards[0].staged == ["a"] and shards[1].staged == []
  assert isinstance(shards[0].views["a"], CudaTensor) and shards[0].views["a"].is_contiguous()
  assert placed([{"a": base}, {"b": base}])[0].staged == ["a"]
  mixed = placed([{"a": base, "b": matrix()}, {}])
  assert mixed[0].home == _gpus.HOST and mixed[0].staged == ["a"]

  def body(group):
    src, dst = cuda(matrix()).t(), cuda(torch.zeros(8, 6))
    xferdtensor(src, [0], [Replicate()], dst, [0], [Replicate()], group)
    assert torch.equal(host(dst), matrix().t())
    xferdtensor(dst, [0], [Replicate()], dst, [0], [Replicate()], group)
    assert torch.equal(host(dst), matrix().t())

  in_threads(1, body)


def test_a_stream_that_is_named_comes_first():
  def body(group):
    stream = TorchStream(gpu())
    src, dst = cuda(torch.zeros(6, 8)), cuda(torch.zeros(6, 8))
    for step, form in enumerate((stream, stream), 1):
      value = matrix() * step
      gpu()._copy(src.data_ptr(), value.data_ptr(), value.nbytes, stream)  # not waited for
      xferdtensor(src, [0], [Replicate()], dst, [0], [Replicate()], group, stream=form)
      assert torch.equal(host(dst), value)

  in_threads(1, body)


def test_a_refit_of_modules_on_a_gpu():
  gpu().forget()
  source = {"a": matrix(), "b": matrix(torch.bfloat16), "c": torch.arange(5)}

  def body(group):
    mine = {name: cuda(tensor) for name, tensor in source.items()} if group.rank == 0 else None
    theirs = {name: cuda(torch.zeros_like(tensor)) for name, tensor in source.items()} if group.rank == 1 else None
    with Refit(mine, theirs, group) as refit:
      for step in (1, 2):
        if mine is not None:
          mine["a"] = cuda(matrix() * step)  # replaced: found again
        refit()
        if theirs is not None:
          assert torch.equal(host(theirs["a"]), matrix() * step)
          assert all(torch.equal(host(theirs[name]), source[name]) for name in "bc")

  in_threads(2, body)
  assert gpu().calls("cuLaunchKernel") >= 2  # the GPU moved them


def test_what_passes_through_the_host_is_said_once(caplog):
  caplog.set_level("INFO", "reshard.gpu")
  _gpus._said.clear()
  there, here = cuda(torch.zeros(2)), torch.zeros(2)
  for _ in range(2):
    _gpus.home_of([there])
    _gpus.home_of([there, here])
    _gpus.home_of([here])
  assert caplog.messages == [
    "tensors of cuda:0 are used on the GPU",
    "tensors of cuda:0 pass through the host's memory: others of this rank are on cpu",
  ]


@pytest.mark.parametrize("on", [("cuda", "cuda"), ("cuda", None), (None, "cuda")])
@pytest.mark.parametrize("keep", [False, True])
def test_a_stream_of_buckets_moves_tensors_of_a_gpu(on, keep):
  updates = [[(n, t) for n, t in tensors(seed) if t.dtype in (torch.float32, torch.bfloat16, torch.uint8)] for seed in (1, 2)]

  def body(group):
    device = None if on[1] is None else DEVICE
    stream = Stream(Link(group, 30.0), senders=2, bucket=400, keep=keep, device=device)

    async def run():
      got = []
      for given in updates:
        if group.rank < 2:
          held = [(name, cuda(t) if on[0] else t) for name, t in given]
          await stream.send(even_pieces(held, group.rank, 2))
          if on[0]:
            assert {arena.device for arena in stream._arenas.values()} == {DEVICE}
        else:
          got.append([pair async for batch in stream.receive() for pair in batch])
          if on[1] and not keep:
            assert {arena.device for arena in stream._arenas.values()} == {DEVICE}
      return got

    try:
      return asyncio.run(run())
    finally:
      stream.close()

  for results in in_threads(3, body)[2:]:
    for given, got in zip(updates, results, strict=True):
      assert [name for name, _ in got] == [name for name, _ in given]
      assert all(isinstance(t, CudaTensor) == bool(on[1]) for _, t in got)
      assert all(torch.equal(host(mine), its) for (_, mine), (_, its) in zip(got, given, strict=True))


def test_the_copy_service_of_megatron_on_a_gpu(tmp_path):
  dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
  try:
    service = CopyService()
    for kinds in ((cuda, cuda), (cuda, torch.clone), (torch.clone, cuda)):
      src, dst = kinds[0](matrix()), kinds[1](torch.zeros(6, 8))
      gaps = kinds[1](torch.zeros(8, 6)).t()
      for step in (1, 2):
        src.copy_(matrix() * step)
        service.submit_send(src, 0, 1)
        service.submit_send(src, 0, 2)
        service.submit_recv(dst, 0, 1)
        service.submit_recv(gaps, 0, 2)
        service.run()
        assert torch.equal(host(dst), matrix() * step) and torch.equal(host(gaps), matrix() * step)
    service.close()
  finally:
    dist.destroy_process_group()
