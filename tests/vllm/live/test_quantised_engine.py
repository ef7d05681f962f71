# SPDX-License-Identifier: Apache-2.0
"""A quantised engine is updated from a trainer with plain values."""

import shutil

import pytest

reshard = pytest.importorskip("reshard")

_FORM = "hf:quant=fp8_channel,quant_method=compressed-tensors"


@pytest.fixture(scope="session")
def quantised(checkpoints, tmp_path_factory):
  """quantised(model, letter): the folder of the checkpoint in FP8."""
  written = {}

  def get(model, letter):
    if (model, letter) not in written:
      plain = checkpoints[model, letter]
      folder = tmp_path_factory.mktemp("quantised") / f"{model}-{letter}"
      reshard.convert(plain, folder, to=_FORM)
      for path in plain.glob("tokenizer*"):
        shutil.copy(path, folder)
      written[model, letter] = folder
    return written[model, letter]

  return get


@pytest.mark.parametrize("route", ["local", "checkpoint"])
@pytest.mark.parametrize("tp", [1])
def test_it_is_as_if_started_on_quantised_b(
  tp, route, server_on, quantised, checkpoints, reference, trainer
):
  a, b = checkpoints["llama", "a"], checkpoints["llama", "b"]
  server = server_on(quantised("llama", "a"), tensor_parallel_size=tp)
  of_a = server.generate(), server.checksums()
  wanted = reference(quantised("llama", "b"), tensor_parallel_size=tp)
  assert of_a[0] != wanted[0]
  ranks = trainer(server, tp, "megatron:tp=2", 2, a, route=route)
  ranks.update(b)
  assert (server.generate(), server.checksums()) == wanted
  ranks.update(a)
  assert (server.generate(), server.checksums()) == of_a
  ranks.close()
