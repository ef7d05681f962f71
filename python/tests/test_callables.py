# SPDX-License-Identifier: Apache-2.0
"""Protects: what a user's callable raises arrives as it is, and ends the refit of all ranks; views that
hold other values than their memory are refused."""

import threading

import pytest

torch = pytest.importorskip("torch")

import reshard  # noqa: E402

LAYOUT = reshard.layout("hf", reshard.Model.from_tensors("m", {"a": ((4,), "F32")}))
KINDS = [KeyboardInterrupt, SystemExit, MemoryError, ValueError, reshard.CorruptError]


def failing(kind, after):
  """A callable that raises when it is called for the time that follows `after`."""
  calls = []

  def call(*_):
    calls.append(None)
    if len(calls) > after:
      raise kind("stop here")
    return {"a": torch.zeros(4)}

  return call


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["tensors", "on_phase"])
def test_what_a_callable_raises_arrives_as_it_is(kind, where):
  fails = failing(kind, after=1 if where == "tensors" else 0)
  session = reshard.Session(
    reshard.local(1)[0],
    source=LAYOUT,
    source_tensors={"a": torch.ones(4)},
    target=LAYOUT,
    target_tensors=fails if where == "tensors" else {"a": torch.zeros(4)},
    on_phase=fails if where == "on_phase" else None,
  )
  with pytest.raises(kind, match="stop here"):
    session.refit(1)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, MemoryError])
def test_the_other_ranks_get_an_error(kind):
  target = reshard.layout("hf:offset=1", LAYOUT.model)
  raised = {}

  def run(group):
    mine = {"source_tensors": {"a": torch.ones(4)}} if group.rank == 0 else {"target_tensors": fails}
    session = reshard.Session(group, source=LAYOUT, target=target, timeout=30, **mine)
    try:
      session.refit(1)
    except BaseException as error:  # noqa: BLE001
      raised[group.rank] = error

  fails = failing(kind, after=1)
  ranks = [threading.Thread(target=run, args=(group,)) for group in reshard.local(2)]
  for rank in ranks:
    rank.start()
  for rank in ranks:
    rank.join()
  assert isinstance(raised[1], kind)
  assert isinstance(raised[0], reshard.Error) and "rank 1" in str(raised[0])


@pytest.mark.parametrize("view", ["conjugated", "negated"])
def test_a_view_of_other_values_is_refused_by_name(view):
  if view == "conjugated":
    layout = reshard.layout("hf", reshard.Model.from_tensors("m", {"a": ((4,), "C64")}))
    tensor = torch.ones(4, dtype=torch.complex64).conj()
  else:
    layout, tensor = LAYOUT, torch.imag(torch.ones(4, dtype=torch.complex64).conj())
  with pytest.raises(reshard.InvalidArgumentError, match=f"'a': cannot be used: it is a {view} view"):
    reshard.RankBuffers(layout, {0: {"a": tensor}})
  with pytest.raises(reshard.InvalidArgumentError, match=f"source tensor 'a': .*{view} view"):
    reshard.Session(
      reshard.local(1)[0],
      source=layout,
      source_tensors={"a": tensor},
      target=layout,
      target_tensors={"a": torch.zeros(4, dtype=tensor.dtype)},
    )
