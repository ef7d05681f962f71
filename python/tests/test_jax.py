# SPDX-License-Identifier: Apache-2.0
"""Law: arrays of JAX are sources without a copy, never targets; what JAX makes of reshard's memory shares it."""

import ctypes
import os

import pytest

import reshard
from ranks import in_threads

os.environ.setdefault("JAX_PLATFORMS", "cpu")
jax = pytest.importorskip("jax", reason="needs `pip install jax` (380 MB)")

DTYPES = {
  "BOOL": "bool_",
  "I8": "int8",
  "U8": "uint8",
  "U16": "uint16",
  "I32": "int32",
  "F16": "float16",
  "BF16": "bfloat16",
  "F32": "float32",
  "C64": "complex64",
  "F8_E4M3": "float8_e4m3fn",
  "F8_E5M2": "float8_e5m2",
  "F8_E8M0": "float8_e8m0fnu",
  "F8_E4M3FNUZ": "float8_e4m3fnuz",
  "F8_E5M2FNUZ": "float8_e5m2fnuz",
  "F4": "float4_e2m1fn",
}


def layout(dtype="BF16", shape=(4, 6)):
  return reshard.layout("hf", reshard.Model.from_tensors("one", {"w": (shape, dtype)}))


def array(dtype="BF16", step=1):
  return (jax.numpy.arange(24).reshape(4, 6) * step % 2).astype(getattr(jax.numpy, DTYPES[dtype]))


def memory(taken, size):
  return ctypes.string_at(taken.unsafe_buffer_pointer(), size)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_is_a_source_where_it_is(dtype):
  source, one = array(dtype), layout(dtype)
  target = reshard.RankBuffers.allocate(one)
  refit = reshard.InProcessRefit(reshard.plan(one, one), reshard.RankBuffers(one, {0: {"w": source}}), target)
  refit.run()
  received = target.tensor(0, "w").raw()
  assert received == memory(source, received.nbytes) and any(received)
  # JAX does not know that its array changes: only memory that is shared can show it.
  ctypes.memset(source.unsafe_buffer_pointer(), 1, received.nbytes)
  refit.run()
  assert set(received) == {1}


@pytest.mark.parametrize("dtype", [name for name in DTYPES if name != "F4"])
def test_every_dtype_is_given_without_a_copy(dtype):
  tensor = reshard.RankBuffers.allocate(layout(dtype)).tensor(0, "w")
  shared = jax.dlpack.from_dlpack(tensor)
  assert shared.dtype == array(dtype).dtype and shared.shape == (4, 6)
  assert shared.unsafe_buffer_pointer() == tensor.data_ptr()


def test_an_array_is_no_target():
  one = layout()
  own, arrays = reshard.RankBuffers.allocate(one), reshard.RankBuffers(one, {0: {"w": array()}})
  with pytest.raises(reshard.InvalidArgumentError, match="target tensor 'w': is read-only, but a refit writes it"):
    reshard.InProcessRefit(reshard.plan(one, one), own, arrays)
  with pytest.raises(reshard.InvalidArgumentError, match="target tensor 'w': is read-only, but a refit writes it"):
    reshard.Session(reshard.local(1)[0], source=one, source_tensors=own, target=one, target_tensors={"w": array()})


def test_an_array_that_was_deleted_is_named():
  source = array()
  taken = reshard.RankBuffers(layout(), {0: {"w": source}})
  source.delete()
  with pytest.raises(reshard.InvalidArgumentError, match="rank 0: tensor 'w': .*deleted"):
    taken.refresh()


def test_a_session_follows_parameters_that_each_step_replaces():
  """As a JAX trainer does it: new arrays in the same dict; the engine's are made of received memory."""
  source = layout()
  target = reshard.layout("hf:offset=1", source.model)

  def body(group):
    parameters = {"w": array()} if group.rank == 0 else None
    received = reshard.RankBuffers.allocate(target, [1]) if group.rank == 1 else None
    served = []
    with reshard.Session(
      group, source=source, source_tensors=parameters, target=target, target_tensors=received, replan=True
    ) as session:
      for version in (1, 2, 3):
        if parameters is not None:
          parameters["w"] = parameters["w"] + 1
        session.refit(version)
        if received is not None:
          served.append(jax.numpy.array(received.tensor(1, "w").numpy()))  # a copy, which JAX may keep
    return served

  pytest.importorskip("ml_dtypes")
  served = in_threads(2, body)[1]
  for step, weights in enumerate(served, 1):
    assert weights.dtype == jax.numpy.bfloat16 and (weights == array() + step).all()
