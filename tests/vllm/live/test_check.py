# SPDX-License-Identifier: Apache-2.0
"""A running engine is equal to a fresh load after updates, on all of its ranks, and the check disturbs nothing."""

import pytest


@pytest.mark.parametrize(("model", "tp"), [("llama", 2), ("qwen3", 1), ("mixtral", 2)])
def test_a_server_that_is_checked_serves_on(server_of, checkpoints, of_b, trainer, model, tp):
  server = server_of(model, tensor_parallel_size=tp)
  a, b = checkpoints[model, "a"], checkpoints[model, "b"]
  before = server.generate(), server.checksums()
  ranks = trainer(server, tp, "fsdp:shard=2", 2, a, check=1, pause="wait")
  for folder, expected in ((b, of_b(model, tp)), (a, before), (b, of_b(model, tp))):  # each is checked, too
    ranks.update(folder)
    ((differences, tensors, checked),) = ranks.check()
    assert differences == 0 and tensors > 30 * tp and checked == tp
    assert (server.generate(), server.checksums()) == expected
  ranks.update(a)
  ranks.close()
