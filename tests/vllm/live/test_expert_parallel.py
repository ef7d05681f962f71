# SPDX-License-Identifier: Apache-2.0
"""An update of an engine with expert parallelism leaves the weights of a start on the new checkpoint.

Nothing is generated: vLLM 0.32's MoE kernel for CPUs has no map of experts, and crashes on a token for
an expert of another rank.
"""

import contextlib

from server import Server

_ENGINE = {"tensor_parallel_size": 2, "enable_expert_parallel": True}


def test_an_update_leaves_every_expert_where_a_start_does(checkpoints, trainer):
  a, b = checkpoints["qwen3_moe", "a"], checkpoints["qwen3_moe", "b"]
  with contextlib.closing(Server(b, **_ENGINE)) as server:
    of_b = server.checksums()
  with contextlib.closing(Server(a, **_ENGINE)) as server:
    of_a = server.checksums()
    assert of_a.keys() == of_b.keys() and of_a != of_b
    for text, size in (("hf", 1), ("megatron:tp=2,ep=2,etp=1", 2)):
      ranks = trainer(server, 2, text, size, a, route="local")
      ranks.update(b)
      assert server.checksums() == of_b, text
      ranks.update(a)
      assert server.checksums() == of_a, text
      ranks.close()
