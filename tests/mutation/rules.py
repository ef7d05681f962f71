# SPDX-License-Identifier: Apache-2.0
"""The rules that run.py flips: one wrong order, offset, stride or axis each."""

import dataclasses

MODEL = "reshard/model/families/"
CARDS = "examples/cards/"
VLLM, SGLANG_BASE = CARDS + "vllm/bases/decoder.json", CARDS + "sglang/bases/decoder.json"
ORDER = MODEL + "rules/expert_order.cc"
REPORTED = "reshard/model/reported/"


@dataclasses.dataclass
class Rule:
  family: str
  name: str
  file: str
  find: str
  replace: str


def megatron(name, file, find, replace):
  return Rule("megatron", name, f"{MODEL}megatron/{file}.cc", find, replace)


MEGATRON = [
  megatron("experts lie in runs over ep", "ffn", "{expert_ep_, e / each}", "{expert_ep_, e % s_.ep}"),
  megatron(
    "names count a rank's own experts", "ffn",
    "const Index local = e % (c_.num_experts / s_.ep);\n  const TensorId up",
    "const Index local = e / s_.ep;\n  const TensorId up",
  ),
  megatron(
    "the expert grid has ep inside dp", "megatron",
    '{"ep", s_.ep}, {"dp", edp}, {"pp", s_.pp}}, first)));\n  dense_pp_',
    '{"dp", s_.ep}, {"ep", edp}, {"pp", s_.pp}}, first)));\n  dense_pp_',
  ),
  megatron("experts are cut over tp by default", "sizes", 'integer("etp", s.tp)', 'integer("etp", 1)'),
  megatron(
    "a query group is q, k, v", "mixers",
    "list.push_back({k, {g * rows, (g + 1) * rows}});\n    list.push_back({v,",
    "list.push_back({v, {g * rows, (g + 1) * rows}});\n    list.push_back({k,",
  ),
  megatron(
    "a gated group is all queries, then all gates", "mixers",
    "for (const Index part : {0, 1})\n        for (Index i = head; i < head + heads; ++i)",
    "for (Index i = head; i < head + heads; ++i)\n        for (const Index part : {0, 1})",
  ),
  megatron("sinks are cut by heads", "mixers", "whole_tensor(m_, sinks, {tp_})", "whole_tensor(m_, sinks)"),
  megatron(
    "MLA's down-projections are duplicated by Transformer Engine, cut by the local spec", "sizes",
    "s.fused_norms ? Down::duplicated : Down::sharded", "s.fused_norms ? Down::sharded : Down::duplicated",
  ),
  megatron(
    "the fused down-projection is q, kv", "mixers",
    "sections(whole_tensor(m_, q, {cut}), whole_tensor(m_, kv, {cut}))",
    "sections(whole_tensor(m_, kv, {cut}), whole_tensor(m_, q, {cut}))",
  ),
  megatron(
    "norms of MLA's latents are inside the up-projections", "mixers",
    '"linear_q_up_proj.layer_norm_weight" : "q_layernorm.weight"',
    '"q_layernorm.weight" : "linear_q_up_proj.layer_norm_weight"',
  ),
  megatron(
    "in_proj packs z, x, B, C, dt", "mixers",
    "{inner, inner, state, state, m.heads}", "{inner, state, inner, state, m.heads}",
  ),
  megatron(
    "conv1d packs x, B, C", "mixers",
    '"conv1d.weight",\n                     {inner, state, state}', '"conv1d.weight",\n                     {state, inner, state}',
  ),
  megatron(
    "parts of what is packed are cut each by itself", "mixers",
    "list.push_back(stacked({{id, {at, at + rows}}}));\n      at += rows;\n    }",
    "at += rows;\n    }\n    list.push_back(stacked({{id, {0, at}}}));",
  ),
  megatron(
    "a delta net's in_proj has values before gates", "mixers",
    "part(qkvz, block, 2 * g.key_dim, values);\n  part(qkvz, block, 2 * g.key_dim + values, values);",
    "part(qkvz, block, 2 * g.key_dim + values, values);\n  part(qkvz, block, 2 * g.key_dim, values);",
  ),
  megatron(
    "a delta net's in_proj has b before a", "mixers",
    "part(ba, 2 * heads, 0, heads);\n  part(ba, 2 * heads, heads, heads);",
    "part(ba, 2 * heads, heads, heads);\n  part(ba, 2 * heads, 0, heads);",
  ),
  megatron("a delta net's rows go by key heads", "mixers", "head * block + first, head * block", "head * rows + first, head * rows"),
  megatron("linear_fc1 is gate, up", "ffn", '{"gate_proj.", "up_proj."}', '{"up_proj.", "gate_proj."}'),
  megatron("linear_fc2 is cut on columns", "ffn", '"down_proj"), 1, c_.mlp_bias', '"down_proj"), 0, c_.mlp_bias'),
  megatron(
    "an expert's linear_fc1 is gate, up", "ffn",
    "gate_up(gate, up, s_.glu_interleave, etp_)", "gate_up(up, gate, s_.glu_interleave, etp_)",
  ),
  megatron(
    "blocks of gates and ups begin with gates", "ffn",
    "for (const TensorId part : {gate, up}) turns", "for (const TensorId part : {up, gate}) turns",
  ),
  megatron(
    "an expert's linear_fc2 is cut on columns", "ffn",
    "whole_tensor(m_, down, {CutId(0), etp_})", "whole_tensor(m_, down, {etp_})",
  ),
  megatron("stacked experts alternate gate, up", "ffn", "half = k % 2", "half = 1 - k % 2"),
  megatron(
    "shared experts are gate, up", "ffn",
    "gate_up(gate, up, s_.shared_glu_interleave, tp_)", "gate_up(up, gate, s_.shared_glu_interleave, tp_)",
  ),
  megatron(
    "shared experts are cut over tp", "ffn",
    "gate_up(gate, up, s_.shared_glu_interleave, tp_)", "gate_up(gate, up, s_.shared_glu_interleave, CutId(0))",
  ),
  megatron("the vocabulary is padded to a multiple of tp", "megatron", "s_.vocab_multiple * s_.tp", "s_.vocab_multiple"),
  megatron(
    "a tied output layer lives on the last stage alone", "megatron",
    "(c_.tie_word_embeddings && chunk.embedding)", "(c_.tie_word_embeddings && !chunk.embedding)",
  ),
  megatron(
    "gamma=plain adds 1, gamma=zero_centered takes 1 off", "megatron",
    "centred ? ValueMap::plus_one : ValueMap::minus_one", "centred ? ValueMap::minus_one : ValueMap::plus_one",
  ),
  megatron(
    "norms are centred where the class is trained so", "megatron",
    "usual ? c_.zero_centered_norms :", "usual ? centred :",
  ),
  megatron(
    "the expert bias is float32", "ffn",
    "sections(whole_tensor(m_, id)), {.dtype = DType::f32}", "sections(whole_tensor(m_, id)), {.dtype = m_[id].dtype}",
  ),
  megatron(
    "a delta net's norm is not centred", "mixers",
    '"norm.weight"), false)', '"norm.weight"), c_.zero_centered_norms)',
  ),
  megatron(
    "eh_proj is cut on rows", "megatron",
    "whole_tensor(m_, RESHARD_TRY(find(names.projection)), {tp_})", "whole_tensor(m_, RESHARD_TRY(find(names.projection)))",
  ),
  megatron(
    "with MTP the final norm stays with the last decoder layer", "megatron",
    "mtp_ > 0 && !hybrid_ ? last_layer : chunk.loss", "mtp_ > 0 && hybrid_ ? last_layer : chunk.loss",
  ),
  megatron(
    "virtual stages go round the stages", "stages",
    "for (Index chunk = 0; chunk < s.vpp; ++chunk) {\n    for (Index stage = 0; stage < s.pp; ++stage) {",
    "for (Index stage = 0; stage < s.pp; ++stage) {\n    for (Index chunk = 0; chunk < s.vpp; ++chunk) {",
  ),
  megatron("explicit stages go round the stages", "stages", ".stage = i % s.pp", ".stage = i * s.pp / std::ssize(rows)"),
  megatron("the embedding counts on the first stage", "stages", "(c.embedding && shares.embedding ? 1 : 0)", "(c.loss && shares.embedding ? 1 : 0)"),
  megatron("first= is the first stage", "stages", "out.stages.front() = first", "out.stages.back() = first"),
]  # fmt: skip

FSDP = [
  Rule(
    "fsdp", "tp cuts rows before shard does", MODEL + "fsdp.cc",
    "if (style == Style::colwise) shards[0].push_back({kTp, 1});\n"
    "  if (style == Style::rowwise && t.stored_shape().size() > 1) shards[1].push_back({kTp, 1});\n"
    "  shards[0].push_back({kShard, 1});",
    "shards[0].push_back({kShard, 1});\n  if (style == Style::colwise) shards[0].push_back({kTp, 1});\n"
    "  if (style == Style::rowwise && t.stored_shape().size() > 1) shards[1].push_back({kTp, 1});",
  ),
  Rule("fsdp", "row-parallel weights are cut on columns", MODEL + "fsdp.cc", "shards[1].push_back({kTp, 1})", "shards[0].push_back({kTp, 1})"),
  Rule("fsdp", "tp is the fastest axis", MODEL + "fsdp.cc", "{replicate, shard, tp}", "{tp, replicate, shard}"),
  Rule(
    "dtensor", "shards are torch.chunk's", MODEL + "dtensor.cc",
    "part_of(CutRule::ceil, chunk.size()", "part_of(CutRule::balanced, chunk.size()",
  ),
  Rule(
    "dtensor", "a strided shard cuts inside each part", MODEL + "dtensor.cc",
    "part_of(CutRule::ceil, size, shards[i].split_factor, j)", "part_of(CutRule::ceil, size, 1, j)",
  ),
]  # fmt: skip

VLLM = [
  Rule(
    "vllm", "KV heads repeat tp / heads times in a row", VLLM,
    """"self_attn.k_proj.weight", "cuts": [{"dim": 0, "axes": ["tp"], "rule": "spread", "granule": "head_dim"}]""",
    """"self_attn.k_proj.weight", "cuts": [{"dim": 0, "axes": ["tp"], "rule": "spread"}]""",
  ),
  Rule(
    "vllm", "q stands before k", VLLM,
    """"name": "{attention}qkv_proj.weight",""",
    """"name": "{attention}qkv_proj.weight", "reverse": 1,""",
  ),
  Rule(
    "vllm", "q_a stands before kv_a", CARDS + "vllm/DeepseekV3ForCausalLM.json",
    """"name": "self_attn.fused_qkv_a_proj.weight",""",
    """"name": "self_attn.fused_qkv_a_proj.weight", "reverse": 1,""",
  ),
  Rule(
    "vllm", "fused_qkv_a_proj is whole", CARDS + "vllm/DeepseekV3ForCausalLM.json",
    """[{"match": "self_attn.kv_a_proj_with_mqa.weight"}]""",
    """[{"match": "self_attn.kv_a_proj_with_mqa.weight", "cuts": [{"dim": 0, "axes": ["tp"]}]}]""",
  ),
  Rule(
    "vllm", "a Mamba group stays whole", CARDS + "vllm/NemotronHForCausalLM.json",
    """"begin": "2 * inner", "end": "2 * inner + states"}], "cuts": [{"dim": 0, "axes": ["tp"], "rule": "spread", "granule": "ssm_state_size"}]},
    {"match": "mixer.in_proj.weight", "shared": true, "take": [{"dim": 0, "begin": "2 * inner + states\"""",
    """"begin": "2 * inner", "end": "2 * inner + states"}], "cuts": [{"dim": 0, "axes": ["tp"], "rule": "spread"}]},
    {"match": "mixer.in_proj.weight", "shared": true, "take": [{"dim": 0, "begin": "2 * inner + states\"""",
  ),
  Rule("vllm", "A is negated and exponentiated", CARDS + "vllm/NemotronHForCausalLM.json", "negated_exp", "identity"),
  Rule("vllm", "parameters are in the model's dtype", VLLM, '"dtype": "config",', '"dtype": "model",'),
  Rule(
    "vllm", "runs of packed rows follow each other", CARDS + "vllm/Qwen3NextForCausalLM.json",
    '"begin": "keys", "end": "2 * keys"', '"begin": "0", "end": "keys"',
  ),
  Rule(
    "vllm", "gate stands before up", VLLM,
    """"name": "mlp.gate_up_proj.weight",""",
    """"name": "mlp.gate_up_proj.weight", "reverse": 1,""",
  ),
  Rule(
    "vllm", "row-parallel weights are cut on columns", VLLM,
    '"match": "mlp.down_proj.weight", "cuts": [{"dim": 1,', '"match": "mlp.down_proj.weight", "cuts": [{"dim": 0,',
  ),
  Rule("vllm", "w13 has gate first", VLLM, '"reverse": "w13.up_first"', '"reverse": "w13.gate_first"'),
  Rule(
    "vllm", "down_proj's width is its columns", VLLM,
    '"cuts": [{"dim": 2, "axes": ["dp", "tp"]', '"cuts": [{"dim": 1, "axes": ["dp", "tp"]',
  ),
  Rule(
    "vllm", "transposed storage swaps both", VLLM,
    """w2_weight", "swap": {"dims": [1, 2], "when": "transposed"}""",
    """w2_weight", "swap": {"dims": [1, 2], "when": 0}""",
  ),
  Rule(
    "vllm", "gpt-oss keeps gate and up rows in turn", CARDS + "vllm/GptOssForCausalLM.json",
    '"dims": [0, 3, 1, 2], "merged": [1]', '"dims": [0, 3, 2, 1], "merged": [1]',
  ),
  Rule("vllm", "a bias that is summed is on one rank", CARDS + "vllm/GptOssForCausalLM.json", "extent * sharers", "extent"),
  Rule(
    "vllm", "redundant experts begin again", ORDER,
    "p % how.num_experts",
    "how.num_experts - 1 - p % how.num_experts",
  ),
  Rule("vllm", "round robin deals one by one", ORDER, "round_robin ? ep : 1", "round_robin ? 1 : ep"),
  Rule("vllm", "the rest of the layers goes before the last stage", VLLM, '"rest": "before_last"', '"rest": "last"'),
  Rule(
    "vllm", "experts are dealt over dp first", VLLM,
    """"name": "mlp.{experts}w2_weight", "swap": {"dims": [1, 2], "when": "transposed"},
    "cuts": [{"dim": 2, "axes": ["dp", "tp"], "combine": "flattened", "when": "ep == 1"}, {"dim": 0, "axes": ["dp", "tp"]""",
    """"name": "mlp.{experts}w2_weight", "swap": {"dims": [1, 2], "when": "transposed"},
    "cuts": [{"dim": 2, "axes": ["dp", "tp"], "combine": "flattened", "when": "ep == 1"}, {"dim": 0, "axes": ["tp", "dp"]""",
  ),
  Rule(
    "vllm", "tp is the fastest axis, then pp", VLLM,
    '{"name": "pp", "size": 1}, {"name": "dp", "size": 1}',
    '{"name": "dp", "size": 1}, {"name": "pp", "size": 1}',
  ),
  Rule("vllm", "shared experts are whole with dp and ep", VLLM, "tp > 1 && dp > 1", "tp > 1 && dp > 9"),
  Rule("vllm", "GLM's shared experts are cut", CARDS + "vllm/Glm4MoeForCausalLM.json", ', "whole_shared": 0', ""),
  Rule("vllm", "vocabulary is padded to 64", VLLM, '"vocab_multiple", "default": 64', '"vocab_multiple", "default": 32'),
  Rule(
    "vllm", "eh_proj of DeepSeek is whole", VLLM,
    '"match": "eh_proj.weight"', '"match": "eh_proj.weight", "cuts": [{"dim": 0, "axes": ["tp"]}]',
  ),
  Rule(
    "sglang", "heads are cut by tp / dp", SGLANG_BASE,
    '"match": "self_attn.o_proj.weight", "name": "{attention}o_proj.weight", "cuts": [{"dim": 1, "axes": ["attention_tp"]}]',
    '"match": "self_attn.o_proj.weight", "name": "{attention}o_proj.weight", "cuts": [{"dim": 1, "axes": ["dp"]}]',
  ),
  Rule(
    "sglang", "dense widths are cut over dp first", SGLANG_BASE,
    '"match": "mlp.down_proj.weight", "cuts": [{"dim": 1, "axes": ["dp", "attention_tp"]',
    '"match": "mlp.down_proj.weight", "cuts": [{"dim": 1, "axes": ["attention_tp", "dp"]',
  ),
  Rule(
    "sglang", "expert ranks are slower than what cuts an expert", SGLANG_BASE,
    '{"name": "expert_tp", "size": "tp / ep", "mesh": "experts"}, {"name": "ep", "size": 1, "mesh": "experts"}',
    '{"name": "ep", "size": 1, "mesh": "experts"}, {"name": "expert_tp", "size": "tp / ep", "mesh": "experts"}',
  ),
  Rule("sglang", "the last stages have the rest", SGLANG_BASE, '"rest": "last"', '"rest": "first"'),
  Rule(
    "sglang", "rows that ranks do not divide are padded to more", SGLANG_BASE,
    """head_everywhere && dp_lm_head == 0", "name": "{prefix}lm_head.weight", "pad": [{"dim": 0, "multiple": "vocab_multiple * (1 + (tp - 1) * (vocab_rows % tp != 0))"}]""",
    """head_everywhere && dp_lm_head == 0", "name": "{prefix}lm_head.weight", "pad": [{"dim": 0, "multiple": "tp"}]""",
  ),
  Rule(
    "sglang", "the embedding follows attention", SGLANG_BASE,
    """(vocab_rows % attention_tp != 0))"}], "cuts": [{"dim": 0, "axes": ["attention_tp"]}], "where": [{"axis": "pp", "at": 0,""",
    """(vocab_rows % attention_tp != 0))"}], "cuts": [{"dim": 0, "axes": ["dp"]}], "where": [{"axis": "pp", "at": 0,""",
  ),
  Rule(
    "sglang", "fused shared experts stand behind a rank's own", ORDER,
    "++of_rank < physical / how.ep",
    "++of_rank < physical",
  ),
  Rule(
    "sglang", "shared experts are parts of one tensor", MODEL + "rules/rule_sections.cc",
    "expert * behind->size", "expert * 0",
  ),
  Rule(
    "sglang", "Qwen3-Next's fc is whole", CARDS + "sglang/Qwen3NextForCausalLM.json",
    '"name": "{prefix}mtp.fc.weight"', '"name": "{prefix}mtp.fc.weight", "cuts": [{"dim": 0, "axes": ["attention_tp"]}]',
  ),
]  # fmt: skip

GATHERED = [
  Rule(
    "gathered", "layer numbers count from one", REPORTED + "parameter_metadata.cc",
    "layer_number - 1",
    "layer_number",
  ),
  Rule(
    "gathered", "experts count over the group", REPORTED + "parameter_metadata.cc",
    "position * each + local",
    "local * group_size + position",
  ),
  Rule(
    "gathered", "members follow each other", REPORTED + "gathered_side.cc",
    "if (m < static_cast<std::size_t>(at.at)) offset",
    "if (m > static_cast<std::size_t>(at.at)) offset",
  ),
  Rule(
    "gathered", "blocks follow each other", REPORTED + "gathered_side.cc",
    "begin += shared.members[m][b];",
    "begin += 0;",
  ),
  Rule(
    "gathered", "partition_stride blocks are cut one by one", REPORTED + "gathered_side.cc",
    "return Blocks(static_cast<std::size_t>(p.partition_stride), local / p.partition_stride);",
    "return Blocks{local};",
  ),
  Rule(
    "gathered", "blocks are stored one after the other", REPORTED + "gathered_side.cc",
    "local += mine[b];",
    "local += 0;",
  ),
  Rule(
    "gathered", "stacked experts follow the group", REPORTED + "gathered_side.cc",
    ".at * p.shape[0]",
    ".at * 0",
  ),
  Rule(
    "gathered", "a tied head is the embedding's", REPORTED + "gathered.cc",
    "if (const int tied = source.find(embedding); tied >= 0) return tied;",
    "",
  ),
  Rule(
    "dtensor", "the first mesh dimension is major", MODEL + "dtensor_slots.cc",
    "rest /= mesh.shape[i];",
    "rest /= 1;",
  ),
  Rule(
    "dtensor", "axes are the mesh's dimensions backwards", MODEL + "dtensor_slots.cc",
    "last - shards[static_cast<std::size_t>(i)].mesh_dim",
    "shards[static_cast<std::size_t>(i)].mesh_dim",
  ),
  Rule(
    "dtensor", "runs are stored one after the other", MODEL + "dtensor_slots.cc",
    "at += first.size();",
    "at += 0;",
  ),
  Rule(
    "dtensor", "cuts may fall inside merged dimensions", MODEL + "dtensor_slots.cc",
    "Interval{begin % last, begin % last + (end - begin)}",
    "Interval{0, end - begin}",
  ),
]  # fmt: skip

SGLANG = [
  Rule(
    "sglang", "attention dp is outside attention tp", SGLANG_BASE,
    '{"name": "attention_tp", "size": "tp / dp"}, {"name": "dp", "size": 1}',
    '{"name": "dp", "size": 1}, {"name": "attention_tp", "size": "tp / dp"}',
  ),
  Rule(
    "sglang", "MLPs are cut over all of tp", SGLANG_BASE,
    '"match": "mlp.down_proj.weight", "cuts": [{"dim": 1, "axes": ["dp", "attention_tp"], "combine": "flattened"',
    '"match": "mlp.down_proj.weight", "cuts": [{"dim": 1, "axes": ["attention_tp"]',
  ),
  Rule("sglang", "the head is cut over all of tp unless told otherwise", SGLANG_BASE, '"dp_lm_head", "words": ["0", "1"]', '"dp_lm_head", "words": ["1", "0"]'),
  Rule(
    "sglang", "a vocabulary that ranks do not divide is padded to the multiple times the ranks", SGLANG_BASE,
    """head_everywhere == 0 && dp_lm_head == 0", "name": "{prefix}lm_head.weight", "pad": [{"dim": 0, "multiple": "vocab_multiple * (1""",
    """head_everywhere == 0 && dp_lm_head == 0", "name": "{prefix}lm_head.weight", "pad": [{"dim": 0, "multiple": "1 * (1""",
  ),
]  # fmt: skip

OTHERS = [
  Rule("hf", "a shard has the tensors that begin in its part", MODEL + "hf.cc", "std::min(begin / each, shards - 1)", "std::min(i, shards - 1)"),
  Rule("hf", "copies stand with the last layers", MODEL + "hf.cc", "*input.config, mesh, shards - 1, dtypes)", "*input.config, mesh, 0, dtypes)"),
  Rule("rules", "negative dimensions count from the last", MODEL + "rules/rule_sections.cc", "dim < 0 ? dim + rank : dim", "dim < 0 ? -dim - 1 : dim"),
  Rule("rules", "dimensions are those of the stored tensor", MODEL + "rules/rule_sections.cc", "while ((tensor.merged.bits >> first & 1) != 0) ++first;", ";"),
  Rule("rules", "a part is taken of each period", MODEL + "rules/rule_sections.cc", "from = k * period + begin, at", "from = k * period, at"),
  Rule("rules", "padding is to what the parts need", MODEL + "rules/rule_sections.cc", "multiple = std::lcm(multiple, parts);", "multiple = std::max(multiple, parts);"),
  Rule("rules", "where= picks one coordinate", MODEL + "rules/rule_places.cc", "fixed.emplace_back(axis, at.stage);", "fixed.emplace_back(axis, size - 1 - at.stage);"),
  Rule("rules", "stages before the last have the layers that are left", MODEL + "rules/rule_places.cc", "std::max<Index>(0, stages - 1 - more)", "std::max<Index>(0, stages - more)"),
  Rule("rules", "parts that alternate follow each other in a turn", MODEL + "rules/rule_sections.cc", "of * turn + before + at % unit", "of * turn + at % unit"),
  Rule("rules", "renumber= counts from the first at the coordinate", MODEL + "rules/rule_places.cc", "return {stage, 0, layer - begin};", "return {stage, 0, layer};"),
  Rule("rules", "or_last= adds the last coordinate", MODEL + "rules/rule_places.cc", "last ? size - 1 : at.stage", "at.stage"),
  Rule("rules", "swap= exchanges what cuts the dimensions", MODEL + "rules/rules.cc", "std::swap(part.at[a], part.at[b]);", ";"),
  Rule("rules", "below= is the first number that is too large", MODEL + "rules/rule_index.cc", "*number >= applied.below.value_or(*number + 1)", "*number > applied.below.value_or(*number + 1)"),
  Rule("cuts", "torch.chunk's rule rounds up", "reshard/sharding/cut.cc", "(m + n - 1) / n", "(m + n) / n"),
  Rule("cuts", "the first parts have one more", "reshard/sharding/cut.cc", "c * each + std::min(c, more)", "c * each"),
  Rule("cuts", "heads repeat in runs", "reshard/sharding/cut.cc", "Interval{c * m / n, c * m / n + 1}", "Interval{c % m, c % m + 1}"),
  Rule("cuts", "flattened axes count the first as major", "reshard/sharding/cut.cc", "c = c * size_of(i) + coordinate(i)", "c = c + coordinate(i) * size_of(i)"),
]  # fmt: skip

RULES = [*MEGATRON, *VLLM, *SGLANG, *FSDP, *GATHERED, *OTHERS]
