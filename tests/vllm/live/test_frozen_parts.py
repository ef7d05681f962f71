# SPDX-License-Identifier: Apache-2.0
"""An update of some tensors changes the layers that hold them, and sends nothing else."""

import shutil

import pytest
from safetensors.torch import load_file, save_file

FILE = "model.safetensors"
PLAIN, EXPERTS = "llama", "qwen3_moe"
# For each model: patterns for only=, and parts of the names of all tensors in the layers that hold a match.
NAMED = {
  PLAIN: (["model.layers.1.self_attn.q_proj.*", "lm_head.weight"], ["layers.1.self_attn.q", "layers.1.self_attn.k", "layers.1.self_attn.v", "lm_head"]),
  EXPERTS: (["model.layers.0.mlp.experts.3.down_proj.weight"], ["layers.0.mlp.experts."]),
}  # fmt: skip


def mixture(a, b, parts, folder):
  """The checkpoint `a` with those tensors of `b` whose names have one of the parts."""
  shutil.copytree(a, folder)
  new = load_file(b / FILE)
  taken = {name: new[name] for name in new if any(part in name for part in parts)}
  assert 0 < len(taken) < len(new)
  save_file(load_file(a / FILE) | taken, folder / FILE, {"format": "pt"})
  return folder


@pytest.mark.parametrize(
  ("model", "tp", "route", "in_place"),
  [(PLAIN, 2, "local", False), (PLAIN, 2, "local", True), (PLAIN, 1, "checkpoint", False), (EXPERTS, 2, "local", False)],
)
def test_layers_that_hold_nothing_of_it_keep_their_values(
  server_of, checkpoints, reference, trainer, tmp_path, model, tp, route, in_place
):
  a, b = checkpoints[model, "a"], checkpoints[model, "b"]
  only, parts = NAMED[model]
  expected = b if route == "checkpoint" else mixture(a, b, parts, tmp_path / "mixture")
  of_new = reference(expected, tensor_parallel_size=tp)
  server = server_of(model, tensor_parallel_size=tp)
  of_a = server.generate(), server.checksums()
  part = trainer(server, tp, "megatron:tp=2", 2, a, only=only, route=route, in_place=in_place)
  sent = [int(line.split()[2]) for line in part.update(b)]
  assert (server.generate(), server.checksums()) == of_new
  part.update(a)
  assert (server.generate(), server.checksums()) == of_a
  part.close()
  if route == "local":
    everything = sum(t.numel() * t.element_size() for t in load_file(a / FILE).values())
    assert 0 < 2 * sum(sent) < everything


def test_what_the_engine_does_not_have_is_named(server_of, checkpoints, tmp_path):
  from trainers import Trainer

  server = server_of(PLAIN, tensor_parallel_size=2)
  made = Trainer(server, 2, "hf", 1, checkpoints[PLAIN, "a"], tmp_path, only=["model.layers.7.*"])
  (said,) = made.ends()
  assert "only: no tensor's name matches 'model.layers.7.*'" in said, said[-2000:]
