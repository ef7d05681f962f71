# SPDX-License-Identifier: Apache-2.0
"""One trainer updates several engines: each has the weights as if it had been started on them, all at one version, or none."""

import contextlib

import pytest
from server import Server


@pytest.fixture(scope="module")
def roles(checkpoints):
  """Servers of one worker and of two, on Llama's checkpoint A."""
  with contextlib.ExitStack() as stack:
    start = lambda tp: stack.enter_context(contextlib.closing(Server(checkpoints["llama", "a"], tensor_parallel_size=tp)))  # noqa: E731
    yield [start(1), start(2)]


def test_an_update_brings_all_to_its_version(roles, checkpoints, of_b, trainer):
  a, b = checkpoints["llama", "a"], checkpoints["llama", "b"]
  of_a = [(one.generate(), one.checksums()) for one in roles]
  ranks = trainer(roles, [1, 2], "megatron:tp=2,pp=2", 4, a, verify=True)
  for path, after in ((b, [of_b("llama", 1), of_b("llama", 2)]), (a, of_a)):
    (said,) = {line.split()[1] for line in ranks.update(path)}
    assert [(one.generate(), one.checksums()) for one in roles] == after
    assert [one.version() for one in roles] == [said, said]
  ((differences, _, compared),) = ranks.check()
  assert differences == 0 and compared == 3
  ranks.begin(b)
  assert [(one.generate(), one.checksums()) for one in roles] == of_a
  ranks.finish()
  assert [(one.generate(), one.checksums()) for one in roles] == [of_b("llama", 1), of_b("llama", 2)]
  ranks.update(a)
  ranks.close()


def test_an_engine_that_is_gone_leaves_the_others_as_they_were(roles, checkpoints, of_b, trainer):
  a, b = checkpoints["llama", "a"], checkpoints["llama", "b"]
  with contextlib.closing(Server(a)) as dies:
    before = [(one.generate(), one.checksums(), one.version()) for one in roles]
    ranks = trainer([*roles, dies], [1, 2, 1], "hf", 1, a)
    dies.process.kill()
    dies.process.wait()
    ranks.say("update", b)
    ranks.ends()
  assert [(one.generate(), one.checksums(), one.version()) for one in roles] == before
  again = trainer(roles, [1, 2], "hf", 1, a)
  again.update(b)
  assert [(one.generate(), one.checksums()) for one in roles] == [of_b("llama", 1), of_b("llama", 2)]
  again.update(a)
  again.close()
