# SPDX-License-Identifier: Apache-2.0
"""Protects: modules of transformers are checked against what from_pretrained(), or its conversion of given tensors, makes."""

import pytest
from safetensors.torch import load_file

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from reshard.check.transformers import check_module  # noqa: E402


@pytest.mark.parametrize("tied", [False, True])
def test_a_module_is_equal_to_its_checkpoint_until_something_changes(tmp_path, tied):
  config = transformers.Qwen3MoeConfig(
    hidden_size=32, intermediate_size=48, moe_intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    head_dim=8, vocab_size=50, num_experts=4, num_experts_per_tok=2, tie_word_embeddings=tied,
  )  # fmt: skip
  module = transformers.AutoModelForCausalLM.from_config(config)
  module.save_pretrained(tmp_path)
  stored = {k: v for p in tmp_path.glob("*.safetensors") for k, v in load_file(p).items()}
  for weights in (tmp_path, lambda: stored.items()):
    report = check_module(module, weights)
    assert report.equal and report.compared["parameter"] >= len(list(module.parameters())) and not report.shared, report
    assert report.compared["alias"] >= tied
  with torch.no_grad():
    module.model.layers[1].input_layernorm.weight[3] = 2
    module.model.rotary_emb.inv_freq[0] = 9
  if tied:
    module.lm_head.weight = torch.nn.Parameter(module.lm_head.weight.detach().clone())
  found = {(d.path, d.kind) for d in check_module(module, tmp_path).differences}
  expected = {("model.layers.1.input_layernorm.weight", "parameter"), ("model.rotary_emb.inv_freq", "buffer")}
  assert found == expected | ({("lm_head.weight", "alias")} if tied else set())
