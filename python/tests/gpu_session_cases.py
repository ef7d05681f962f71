# SPDX-License-Identifier: Apache-2.0
"""Law: a session whose sides are on a GPU gives every rank its bytes, and waits for its own work only."""

import pytest
import torch

import gpu_process
import reshard
from gpu_memory import WAITS, emulated, engine_memory, gpu, matrix, numbers, on_gpu, read, sides
from ranks import Processes, errors_in_threads, in_threads
from small_models import assert_equal, vllm_slices, zeros


def session_all(target, given, size, *, on=("gpu", "gpu"), versions=(1,), **options):
  """{rank: target tensors} after refits from rank 0, with sides on the GPU or the host."""

  def body(group):
    me = group.rank
    source = reshard.layout("hf", target.model)
    mine = on_gpu(given) if on[0] == "gpu" else given
    theirs = zeros(target, me) if me in target.ranks else None
    theirs = on_gpu(theirs) if theirs is not None and on[1] == "gpu" else theirs
    with reshard.Session(
      group, source=source, source_tensors=mine if me == 0 else None, target=target, target_tensors=theirs, **options
    ) as session:
      for version in versions:
        session.refit(version)
      session.verify()
    return theirs if theirs is None or on[1] != "gpu" else read(theirs)

  return in_threads(size, body)


@pytest.mark.parametrize("path", ["automatic", "message"])
@pytest.mark.parametrize("on", [("gpu", "gpu"), ("gpu", "host"), ("host", "gpu")])
def test_sessions_between_threads_give_every_rank_its_shards(path, on):
  of, _, target, given = sides("moe")
  got = session_all(target, given, 2, on=on, versions=(1, 2), path=path, verify="always")
  for rank in (0, 1):
    assert_equal(got[rank], vllm_slices(given, 2, rank))


@pytest.mark.parametrize("transport", ["shm", "gloo"])
def test_sessions_between_processes_give_every_rank_its_shards(transport):
  if not reshard.find_transport(transport).available:
    pytest.skip(reshard.find_transport(transport).reason)
  with Processes(2, gpu_process.refit, transport=transport) as processes:
    for rank in (0, 1):
      assert processes.receive(rank) is True and processes.receive(rank) is True
      assert processes.receive(rank) in ("message", "direct", "mixed")
    assert processes.join() == [0, 0]


def test_sessions_quantise_on_the_gpu():
  of, source, _, given = sides()
  target = reshard.layout("vllm:tp=2,quant=mxfp8,quant_grid=local", of)
  served = [reshard.RankBuffers.allocate(target, device=device) for device in ("cuda", "cpu")]

  def body(group):
    for buffers, tensors in zip(served, (on_gpu(given), given), strict=True):
      with reshard.Session(
        group, source=source, source_tensors=tensors if group.rank == 0 else None, target=target, target_tensors=buffers
      ) as session:
        session.refit(1)

  in_threads(2, body)
  prints = [reshard.fingerprints(buffers).dict() for buffers in served]
  assert prints[0] == prints[1]


@emulated
def test_a_refit_begins_after_the_streams_and_is_done_when_it_returns():
  tensors = [gpu().tensor(torch.zeros(4, 6, dtype=torch.bfloat16)) for _ in range(2)]
  streams = [gpu().stream() for _ in range(3)]
  for group in reshard.local(1):
    with reshard.Session(
      group, source=matrix(), source_tensors={"w": tensors[0]}, target=matrix(), target_tensors={"w": tensors[1]},
      stream=streams[0],
    ) as session:  # fmt: skip
      for version, stream in enumerate((None, streams[1], streams[2].cuda_stream), 1):
        used = streams[0] if stream is None else stream
        gpu().write(tensors[0], numbers() + version, used)
        gpu().forget()
        session.refit(version, stream=stream)
        assert [gpu().calls(call) for call in WAITS if call != "cuEventQuery"] == [0] * (len(WAITS) - 1)
        assert torch.equal(gpu().read(tensors[1], gpu().stream()), numbers() + version)


@emulated
def test_steady_sessions_allocate_nothing():
  of, source, target, given = sides()
  mine, theirs = on_gpu(given), engine_memory(target)
  counts = []

  def body(group):
    with reshard.Session(
      group, source=source, source_tensors=mine if group.rank == 0 else None, target=target,
      target_tensors=theirs[group.rank],
    ) as session:  # fmt: skip
      session.refit(1)
      group.barrier()
      if group.rank == 0:
        gpu().forget()
      group.barrier()
      session.refit(2)
      group.barrier()
      if group.rank == 0:
        counts.extend(gpu().calls(call) for call in ("cuMemAlloc", "cuMemHostAlloc", "cuEventCreate", "cuStreamSynchronize"))

  in_threads(2, body)
  assert counts == [0, 0, 0, 0]


@emulated
def test_a_session_finds_tensors_that_moved_to_another_place():
  def body(group):
    given = {"w": gpu().tensor(numbers())}
    with reshard.Session(
      group, source=matrix(), source_tensors=lambda: given, target=matrix(), target_tensors={"w": gpu().tensor(numbers())},
      replan=True,
    ) as session:  # fmt: skip
      session.refit(1)
      given["w"] = numbers() + 3  # of the host
      session.refit(2)
      given["w"] = gpu().tensor(numbers() + 4)
      session.refit(3)
      given["w"].free()
      session.refit(4)

  (error,) = errors_in_threads(1, body)
  assert isinstance(error, reshard.InvalidArgumentError) and "source tensor 'w': has no memory" in str(error)


def test_doubled_targets_alternate_on_the_gpu():
  of, source, target, given = sides()
  first, second = engine_memory(target), engine_memory(target)

  def body(group):
    me = group.rank
    with reshard.Session(
      group, source=source, source_tensors=on_gpu(given) if me == 0 else None, target=target, target_tensors=first[me],
      back_tensors=second[me], buffering="doubled",
    ) as session:  # fmt: skip
      session.refit(1)
      buffer = session.target_version().buffer
      session.refit(2)
      assert {buffer, session.target_version().buffer} == {0, 1}

  in_threads(2, body)
  for memory in (first, second):
    for rank in (0, 1):
      assert_equal(read(memory[rank]), vllm_slices(given, 2, rank))
