# SPDX-License-Identifier: Apache-2.0
"""An engine answers with a LoRA adapter, or with weights that it was merged into, as one that was started on them."""

import adapters
import pytest
import reshard.lora


@pytest.fixture(scope="session")
def trained(checkpoints, tmp_path_factory):
  """trained[1], trained[2]: folders of adapters."""
  root = tmp_path_factory.mktemp("adapters")
  for seed in (1, 2):
    adapters.write(root / str(seed), checkpoints["llama", "a"], seed)
  return {seed: root / str(seed) for seed in (1, 2)}


@pytest.mark.parametrize("tp", (1, 2))
def test_adapters_and_weights_are_one_version(server_on, checkpoints, reference, trained, trainer, tmp_path, tp):
  a, b = checkpoints["llama", "a"], checkpoints["llama", "b"]
  served = tmp_path / "served"
  adapters.write(served, a, 1)
  server = server_on(a, tensor_parallel_size=tp, enable_lora=True, lora_modules=f"policy={served}")
  of = {
    (base, seed): reference(base, adapter=seed and trained[seed], tensor_parallel_size=1)[0]
    for base in (a, b)
    for seed in (None, 1, 2)
  }
  assert len({str(tokens) for tokens in of.values()}) == len(of)

  def now():
    return server.generate(), server.generate("policy")

  assert now() == (of[a, None], of[a, 1])
  policy = {"policy": {"folder": str(served), "config": adapters.CONFIG}}
  options = {"program": "lora_trainer.py", "adapter": str(trained[1]), "adapters": policy}
  only = trainer(server, tp, "", 2, a, only=reshard.lora.NAMES, **options)
  small = [int(line.split()[2]) for line in only.update(a, trained[2])]
  assert now() == (of[a, None], of[a, 2])
  only.update(a, trained[1])
  assert now() == (of[a, None], of[a, 1])
  only.close()
  both = trainer(server, tp, "", 2, a, **options)
  large = [int(line.split()[2]) for line in both.update(b, trained[2])]
  assert now() == (of[b, None], of[b, 2])
  both.update(a, trained[1])
  assert now() == (of[a, None], of[a, 1])
  both.close()
  # The factors have rank 4, and the weights 128 rows and more.
  assert 0 < 10 * sum(small) < sum(large)


def test_a_trainer_merges_on_the_way(server_of, checkpoints, reference, trained, trainer, tmp_path):
  a, b = checkpoints["llama", "a"], checkpoints["llama", "b"]
  server = server_of("llama", tensor_parallel_size=2)
  of_a = server.generate()
  ranks = trainer(
    server, 2, "", 2, a, program="lora_trainer.py", adapter=str(trained[1]), merge={"policy": adapters.CONFIG}
  )
  for base, seed in ((a, 1), (b, 2), (a, 2)):
    ranks.update(base, trained[seed])
    adapters.merge(base, trained[seed], tmp_path / f"{base.name}-{seed}")
    assert server.generate() == reference(tmp_path / f"{base.name}-{seed}", tensor_parallel_size=1)[0] != of_a
  ranks.close()
  plain = trainer(server, 2, "hf", 1, a)
  plain.update(a)
  assert server.generate() == of_a
  plain.close()


def test_an_engine_without_adapters_refuses_them(server_of, checkpoints, trained, tmp_path):
  from trainers import Trainer

  a = checkpoints["llama", "a"]
  server = server_of("llama", tensor_parallel_size=2)
  before = server.generate()
  policy = {"policy": {"folder": str(tmp_path / "served"), "config": adapters.CONFIG}}
  made = Trainer(
    server, 2, "", 1, a, tmp_path, program="lora_trainer.py", adapter=str(trained[1]), adapters=policy
  )
  (said,) = made.ends()
  assert "start it with --enable-lora" in said, said[-2000:]
  assert server.generate() == before
