# SPDX-License-Identifier: Apache-2.0
"""The rules that run.py flips: one wrong order, offset, stride or axis each."""

import dataclasses


@dataclasses.dataclass
class Rule:
  family: str
  name: str
  file: str
  find: str
  replace: str


RULES = [
  Rule(
    "vllm", "KV heads repeat tp / heads times in a row", "reshard/model/engine_mixers.cc",
    "in_units(d_.heads, c_.head_dim)",
    "in_units(d_.heads, 1)",
  ),
  Rule(
    "vllm", "q stands before k", "reshard/model/engine_mixers.cc",
    '{{hf("q_proj"), heads_}, {hf("k_proj"), kv}',
    '{{hf("k_proj"), kv}, {hf("q_proj"), heads_}',
  ),
  Rule(
    "vllm", "q_a stands before kv_a", "reshard/model/engine_mixers.cc",
    '{{hf("q_a_proj"), whole}, {hf("kv_a_proj_with_mqa"), whole}}',
    '{{hf("kv_a_proj_with_mqa"), whole}, {hf("q_a_proj"), whole}}',
  ),
  Rule(
    "vllm", "fused_qkv_a_proj is whole", "reshard/model/engine_mixers.cc",
    '{hf("kv_a_proj_with_mqa"), whole}}',
    '{hf("kv_a_proj_with_mqa"), heads_}}',
  ),
  Rule(
    "vllm", "a Mamba group stays whole", "reshard/model/engine_mixers.cc",
    "in_units(d_.heads, m.state)",
    "in_units(d_.heads, 1)",
  ),
  Rule(
    "vllm", "A is negated and exponentiated", "reshard/model/engine_mixers.cc",
    "heads_, true, ValueMap::negated_exp",
    "heads_, true, ValueMap::identity",
  ),
  Rule(
    "vllm", "runs of packed rows follow each other", "reshard/model/engine_mixers.cc",
    "begin += rows;",
    "begin += 0;",
  ),
  Rule(
    "vllm", "gate stands before up", "reshard/model/engine.cc",
    '{{hf + "gate_proj", how}, {hf + "up_proj", how}}',
    '{{hf + "up_proj", how}, {hf + "gate_proj", how}}',
  ),
  Rule(
    "vllm", "row-parallel weights are cut on columns", "reshard/model/engine.cc",
    "whole_tensor(m_, id, {CutId(0), how})",
    "whole_tensor(m_, id, {how})",
  ),
  Rule(
    "vllm", "w13 has gate first", "reshard/model/engine_experts.cc",
    "d_.up_first ? w13.end() : w13.begin()",
    "d_.up_first ? w13.begin() : w13.end()",
  ),
  Rule(
    "vllm", "down_proj's width is its columns", "reshard/model/engine_experts.cc",
    "down ? columns : rows",
    "down ? rows : columns",
  ),
  Rule(
    "vllm", "transposed storage swaps both", "reshard/model/engine_experts.cc",
    "rows = d_.transposed ? 2 : 1",
    "rows = 1",
  ),
  Rule(
    "vllm", "gpt-oss keeps gate and up rows in turn", "reshard/model/engine_experts.cc",
    "{0, 3, 1, 2}",
    "{0, 3, 2, 1}",
  ),
  Rule(
    "vllm", "a bias that is summed is on one rank", "reshard/model/engine_experts.cc",
    "sharers > 1 ? inner_ : outer_",
    "outer_",
  ),
  Rule(
    "vllm", "redundant experts begin again", "reshard/model/engine_design.cc",
    "p % how.num_experts",
    "how.num_experts - 1 - p % how.num_experts",
  ),
  Rule(
    "vllm", "round robin deals one by one", "reshard/model/engine_design.cc",
    "round_robin ? ep : 1",
    "round_robin ? 1 : ep",
  ),
  Rule(
    "vllm", "the rest of the layers goes before the last stage", "reshard/model/vllm.cc",
    "pp - 2 - i",
    "pp - 1 - i",
  ),
  Rule(
    "vllm", "experts are dealt over dp first", "reshard/model/vllm.cc",
    'DimCut both = cut_over(d.mesh.axis("dp"));\n  both.axes[1] = static_cast<std::int8_t>(tp);',
    'DimCut both = cut_over(tp);\n  both.axes[1] = static_cast<std::int8_t>(d.mesh.axis("dp"));',
  ),
  Rule(
    "vllm", "tp is the fastest axis, then pp", "reshard/model/vllm.cc",
    '{"pp", s.pp}, {"dp", s.dp}',
    '{"dp", s.dp}, {"pp", s.pp}',
  ),
  Rule(
    "vllm", "shared experts are whole with dp and ep", "reshard/model/vllm.cc",
    "s.tp > 1 && s.dp > 1 &&",
    "s.tp > 1 && s.dp > 9 &&",
  ),
  Rule(
    "vllm", "GLM's shared experts are cut", "reshard/model/vllm.cc",
    ' && c.model_type != "glm4_moe";',
    ";",
  ),
  Rule(
    "vllm", "vocabulary is padded to 64", "reshard/model/vllm.cc",
    '"vocab_multiple", 64',
    '"vocab_multiple", 32',
  ),
  Rule(
    "vllm", "eh_proj of DeepSeek is whole", "reshard/model/engine_mtp.cc",
    "trailing ? CutId(0) : dense_",
    "trailing ? dense_ : CutId(0)",
  ),
]  # fmt: skip
