# SPDX-License-Identifier: Apache-2.0
"""Law: a refit in the background delivers its version whole while the trainer writes sources that are free."""

import asyncio
import gc
import multiprocessing
import threading

import pytest
import torch

import reshard
from ranks import TIMEOUT, errors_in_threads, in_threads
from small_models import assert_equal, model, values, vllm_slices, zeros


def session_of(group, of, **options):
  """A session from whole tensors on rank 0 to vLLM's shards on ranks 1 and 2, and its tensors."""
  source, target = reshard.layout("hf", of), reshard.layout("vllm:tp=2,offset=1", of)
  mine = {n: t.clone() for n, t in values(of, 1).items()} if group.rank == 0 else None
  theirs = zeros(target, group.rank) if group.rank > 0 else None
  session = reshard.Session(
    group,
    source=source,
    source_tensors=mine,
    target=target,
    target_tensors=theirs,
    back_tensors=zeros(target, group.rank) if theirs is not None and options.get("buffering") == "doubled" else None,
    **options,
  )
  return session, mine, theirs


@pytest.mark.parametrize("snapshot", [False, True])
@pytest.mark.parametrize("path", ["direct", "message"])
def test_the_trainer_writes_its_sources_while_engines_receive(path, snapshot):
  of = model("moe")

  def body(group):
    session, mine, theirs = session_of(group, of, path=path, snapshot=snapshot, verify="always")
    for version in range(1, 6):
      pending = session.refit_async(version)
      if mine is not None:
        assert pending.sources_free() or not snapshot
        assert pending.wait_sources_free(TIMEOUT)
        for name, tensor in values(of, version + 1).items():
          mine[name].copy_(tensor)
      report = pending.result(TIMEOUT)
      assert pending.done() and report.version == version == session.report.version
      assert (report.snapshot_seconds > 0) == (snapshot and mine is not None)
      assert (report.pause_seconds > 0) == (theirs is not None)
      if theirs is not None:
        assert session.target_version().version == version
        assert_equal(theirs, vllm_slices(values(of, version), 2, group.rank - 1))
    assert pending.result() is not None  # again
    session.close()

  in_threads(3, body)


def test_it_is_awaited_beside_other_tasks():
  of = model()

  def body(group):
    session, _, theirs = session_of(group, of)

    async def both():
      ticks = []

      async def serve():
        ticks.append(await asyncio.sleep(0, "tick"))

      report, _ = await asyncio.gather(refit(), serve())
      return report, ticks

    async def refit():
      return await session.refit_async(3)

    report, ticks = asyncio.run(both())
    assert report.version == 3 and ticks == ["tick"]
    if theirs is not None:
      assert_equal(theirs, vllm_slices(values(of, 1), 2, group.rank - 1))

  in_threads(3, body)


def test_sources_are_in_use_and_the_group_is_busy_meanwhile():
  of, looked = model(), threading.Event()
  all_looked = threading.Barrier(3, action=looked.set)

  def body(group):
    # The ranks enter the transfer once all have looked.
    session, _, _ = session_of(group, of, on_phase=lambda phase: phase != "transfer" or looked.wait(TIMEOUT))
    pending = session.refit_async(1)
    assert not pending.done() and not pending.sources_free()
    assert not pending.wait(0.001) and not pending.wait_sources_free(0.001)
    assert "sources in use" in repr(pending) and "in progress" in repr(session)
    with pytest.raises(TimeoutError, match="the refit of version 1 has not ended"):
      pending.result(0.001)
    for call in (lambda: session.refit(2), session.verify, group.barrier, lambda: session.refit_async(2), session.close):
      with pytest.raises(reshard.InvalidArgumentError, match=r"refit_async\(\) is in progress"):
        call()
    with pytest.raises(reshard.InvalidArgumentError, match="in progress"):
      _ = session.path
    assert session.target_version().version == -1
    all_looked.wait(TIMEOUT)
    assert pending.result(TIMEOUT).version == 1 and "done" in repr(pending)
    session.refit(2)
    session.refit_async(3).wait()
    group.barrier()  # although nobody has taken the result
    assert session.report.version == 3

  in_threads(3, body)


def test_an_error_is_raised_by_the_result_on_all_ranks_and_at_the_end_of_a_with_block():
  of = model()

  class Boom(Exception):
    pass

  def on_phase(phase):
    if phase == "check":
      raise Boom("the engine sleeps")

  def asked(group):
    session, _, _ = session_of(group, of, on_phase=on_phase if group.rank == 1 else None)
    pending = session.refit_async(1)
    assert pending.wait(TIMEOUT) and pending.sources_free()
    with pytest.raises((Boom, reshard.AbortedError)) as first:
      pending.result()
    with pytest.raises(type(first.value)):
      pending.result()
    raise first.value

  def unasked(group):
    with session_of(group, of, on_phase=on_phase if group.rank == 1 else None)[0] as session:
      session.refit_async(1)

  for body in (asked, unasked):
    errors = errors_in_threads(3, body)
    assert [type(error) for error in errors] == [reshard.AbortedError, Boom, reshard.AbortedError]
    assert "raised Boom: the engine sleeps" in str(errors[0])


def test_a_session_that_is_dropped_ends_the_refit_for_all():
  of = model()
  dropped = threading.Event()

  def body(group):
    if group.rank == 0:
      session, mine, _ = session_of(group, of, on_phase=lambda phase: phase != "transfer" or dropped.wait(TIMEOUT))
      session.refit_async(1)
      del session
      gc.collect()
      group.barrier()
    else:
      try:
        session_of(group, of)[0].refit_async(1).result(TIMEOUT)
      finally:
        dropped.set()

  errors = errors_in_threads(3, body)
  assert all(isinstance(error, reshard.AbortedError) for error in errors)
  assert "was dropped during refit_async()" in str(errors[1])


def _leave_in_progress():
  of = model()
  layout, group = reshard.layout("hf", of), reshard.local(1)[0]
  entered, never = threading.Event(), threading.Event()

  def on_phase(phase):
    entered.set()
    never.wait(0.05 if phase == "transfer" else 0)

  session = reshard.Session(
    group, source=layout, source_tensors=values(of), target=layout, target_tensors=zeros(layout, 0), on_phase=on_phase
  )
  session.refit_async(1)
  assert entered.wait(TIMEOUT)


def test_a_process_ends_with_a_refit_in_progress():
  process = multiprocessing.get_context("spawn").Process(target=_leave_in_progress, daemon=True)
  process.start()
  process.join(TIMEOUT)
  assert process.exitcode == 0


def test_a_snapshot_needs_no_plan_for_tensors_that_moved():
  of = model()
  layout = reshard.layout("hf", of)
  given = {"now": values(of, 1)}
  target = zeros(layout, 0)
  group = reshard.local(1)[0]
  with reshard.Session(
    group, source=layout, source_tensors=lambda: given["now"], target=layout, target_tensors=target, snapshot=True
  ) as session:
    for version in (1, 2, 3):
      given["now"] = {n: t.clone() for n, t in values(of, version).items()}
      report = session.refit(version)
      assert report.plan_seconds == 0
      assert all(torch.equal(target[n], t) for n, t in given["now"].items())
