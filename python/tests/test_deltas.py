# SPDX-License-Identifier: Apache-2.0
"""Protects: deltas are made, applied and read from Python as by the program; errors and interrupts arrive as they are."""

import pytest

import reshard


@pytest.fixture
def steps(tmp_path):
  for step in (0, 1, 2):
    reshard.synthesize("demo-moe", tmp_path / str(step), layers=1, seed=step, progress=False)
  return tmp_path


def same(a, b):
  names = sorted(path.name for path in a.iterdir())
  return names == sorted(path.name for path in b.iterdir()) and all((a / n).read_bytes() == (b / n).read_bytes() for n in names)


def test_a_chain_gives_the_last_checkpoint(steps):
  first = reshard.delta.make(steps / "0", str(steps / "1"), steps / "first", progress=False)
  last = reshard.delta.make(steps / "1", steps / "2", steps / "last", after=steps / "first", threads=1)
  assert (first.step, last.step, last.anchor, last.base) == (1, 2, first.base, first.result)
  assert first.delta_bytes == (steps / "first").stat().st_size and first.share == first.delta_bytes / first.result_bytes
  calls = []
  applied = reshard.delta.apply(steps / "0", [steps / "first", steps / "last"], steps / "out", progress=lambda *c: calls.append(c))
  assert calls[-1] == ("apply", applied.bytes, applied.bytes)
  assert (applied.first_step, applied.step, applied.result) == (1, 2, last.result) and same(steps / "out", steps / "2")
  assert reshard.delta.apply(steps / "0", steps / "first", steps / "one").step == 1 and same(steps / "one", steps / "1")
  read = reshard.delta.inspect(steps / "last")
  assert (read.result, read.unchanged, len(read.changes)) == (last.result, last.unchanged, len(last.changes))
  change = max(read.changes, key=lambda c: c.delta_bytes)
  assert (change.file, change.state) == ("model.safetensors", "changed") and change.bytes < change.delta_bytes < 1.001 * change.bytes
  assert change.name in reshard.open_model(steps / "0").tensors
  assert "step 2" in repr(read) and change.name in repr(change) and "to step 2" in repr(applied)


def test_errors_are_the_classes_of_their_codes(steps):
  reshard.delta.make(steps / "0", steps / "1", steps / "first")
  with pytest.raises(reshard.InvalidArgumentError, match="is not the checkpoint that .*first changes: .*differs"):
    reshard.delta.apply(steps / "1", steps / "first", steps / "out")
  with pytest.raises(reshard.InvalidArgumentError, match="no deltas to apply"):
    reshard.delta.apply(steps / "0", [], steps / "out")
  with pytest.raises(reshard.CorruptError, match="is no delta"):
    reshard.delta.inspect(steps / "0" / "model.safetensors")
  with pytest.raises(reshard.NotFoundError, match="nowhere"):
    reshard.delta.inspect(steps / "nowhere")
  with pytest.raises(reshard.InvalidArgumentError, match="threads is -1"):
    reshard.delta.make(steps / "0", steps / "1", steps / "out", threads=-1)
  with pytest.raises(TypeError, match="after"):
    reshard.delta.make(steps / "0", steps / "1", steps / "out", after=3)
  assert not (steps / "out").exists()


def test_an_exception_of_the_callable_cancels(steps):
  def stop(*_):
    raise TimeoutError("now")

  with pytest.raises(TimeoutError, match="now"):
    reshard.delta.make(steps / "0", steps / "1", steps / "out", threads=1, progress=stop)
  assert sorted(path.name for path in steps.iterdir()) == ["0", "1", "2"]
