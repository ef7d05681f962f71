// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "reshard/model/families/megatron/builder.h"

namespace reshard::families {
namespace {

using Kinds = std::vector<LayerKind>;

/// Checks the sizes against the model.
class MegatronCheck {
 public:
  MegatronCheck(const MegatronSizes& s, const ModelConfig& c, ErrorList& wrong)
      : s_(s), c_(c), kinds_(c.kinds(s.mtp)), wrong_(wrong) {}

  void run() {
    const Index grid = s_.etp * s_.ep, stage = s_.tp * s_.cp * s_.dp;
    if (stage % grid != 0)
      wrong_.refuse(fmt::format(
          "etp*ep={} does not divide tp*cp*dp={}, the ranks of one pipeline stage", grid, stage));
    mixers();
    if (has(kinds_, Ffn::dense))
      cuts_evenly("tp", s_.tp, "intermediate_size", c_.intermediate_size);
    const bool routed = has(kinds_, Ffn::experts);
    if (routed) experts();
    interleaves("glu_interleave", s_.glu_interleave,
                routed ? c_.moe_intermediate_size / s_.etp : 0);
    interleaves("shared_glu_interleave", s_.shared_glu_interleave,
                routed ? c_.shared_expert_size / s_.tp : 0);
    // eh_proj is cut by rows.
    if (s_.mtp && c_.num_mtp > 0) cuts_evenly("tp", s_.tp, "hidden_size", c_.hidden_size);
  }

 private:
  void cuts_evenly(const char* part, Index n, const char* whole, Index size) {
    if (size % n != 0)
      wrong_.refuse(fmt::format("{}={} does not divide {}={}", part, n, whole, size));
  }

  void mixers() {
    // Required by TransformerConfig for all models.
    cuts_evenly("tp", s_.tp, "num_attention_heads", c_.num_attention_heads);
    const Index groups = c_.num_key_value_heads;
    if (!has(kinds_, Mixer::mla) && groups % s_.tp != 0 && s_.tp % groups != 0)
      wrong_.refuse(fmt::format(
          "tp={} is neither a multiple nor a divisor of num_key_value_heads={}", s_.tp, groups));
    if (has(kinds_, Mixer::attention)) {
      const Index q = (c_.attention_gate ? 2 : 1) * c_.num_attention_heads;
      cuts_evenly("tp", s_.tp, "the rows of linear_qkv", (q + 2 * groups) * c_.head_dim);
    }
    if (has(kinds_, Mixer::mla)) mla();
    if (has(kinds_, Mixer::mamba2)) {
      if (c_.mamba2.bias)
        wrong_.add(fail(Code::unsupported,
                        "its Mamba mixers have no biases in in_proj and out_proj, but the model "
                        "does (use_bias)"));
      cuts_evenly("tp", s_.tp, "mamba_num_heads", c_.mamba2.heads);
      cuts_evenly("tp", s_.tp, "n_groups", c_.mamba2.groups);
    }
    if (has(kinds_, Mixer::gated_delta)) {
      cuts_evenly("tp", s_.tp, "linear_num_key_heads", c_.gated_delta.key_heads);
      cuts_evenly("tp", s_.tp, "linear_num_value_heads", c_.gated_delta.value_heads);
    }
  }

  void mla() {
    using Down = MegatronSizes::MlaDown;
    const MlaConfig& m = c_.mla;
    if (m.bias)
      wrong_.add(fail(Code::unsupported,
                      "its MLA projections have no biases, but the model does (attention_bias)"));
    if (s_.mla_down == Down::fused && m.q_rank == 0)
      wrong_.refuse("mla_down=fused needs q_lora_rank; without it use duplicated or sharded");
    if (s_.mla_down == Down::duplicated) return;
    if (m.q_rank > 0) cuts_evenly("tp", s_.tp, "q_lora_rank", m.q_rank);
    cuts_evenly("tp", s_.tp, "kv_lora_rank+qk_rope_head_dim", m.kv_rank + m.rope_dim);
  }

  void experts() {
    cuts_evenly("ep", s_.ep, "num_experts", c_.num_experts);
    cuts_evenly("etp", s_.etp, "moe_intermediate_size", c_.moe_intermediate_size);
    if (c_.shared_expert_size > 0)
      cuts_evenly("tp", s_.tp, "the width of the shared experts", c_.shared_expert_size);
  }

  /// @param width number of gates on one rank; 0: none
  void interleaves(const char* key, Index rows, Index width) {
    if (rows == 0) return;
    if (!c_.gated_mlp || width == 0)
      wrong_.refuse(fmt::format("{}={}: {} has no such experts with gate projections", key, rows,
                                c_.architecture));
    else
      cuts_evenly(key, rows, "the gates of an expert on one rank", width);
  }

  const MegatronSizes& s_;
  const ModelConfig& c_;
  const Kinds kinds_;
  ErrorList& wrong_;
};

}  // namespace

void MegatronBuilder::check(const MegatronSizes& s, const ModelConfig& c, ErrorList& wrong) {
  MegatronCheck(s, c, wrong).run();
  wrong.add(check_ep("megatron", s.ep, c));
}

}  // namespace reshard::families
