// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/megatron_sizes.h"

#include <fmt/format.h>

#include <numeric>

namespace reshard {
namespace {

Result<bool> flag(const LayoutSpec& spec, const char* key, bool otherwise) {
  if (!spec.keys.contains(key)) return otherwise;
  return RESHARD_TRY(spec.word(key, {"0", "1"})) == "1";
}

Result<> read_pipeline(const LayoutSpec& spec, MegatronSizes& s) {
  s.pp = RESHARD_TRY(spec.integer("pp", 1));
  s.vpp = RESHARD_TRY(spec.integer("vpp", 1));
  s.first = RESHARD_TRY(spec.integer("first", 0));
  s.last = RESHARD_TRY(spec.integer("last", 0));
  s.account_embedding = RESHARD_TRY(flag(spec, "account_embedding", false));
  s.account_loss = RESHARD_TRY(flag(spec, "account_loss", false));
  s.accounts_given = spec.keys.contains("account_embedding") || spec.keys.contains("account_loss");
  if (const auto it = spec.keys.find("layout"); it != spec.keys.end()) s.pipeline = it->second;
  const bool ends_given = s.first > 0 || s.last > 0;
  if (!s.pipeline.empty() && (ends_given || s.accounts_given))
    return fail(Code::invalid_argument,
                "megatron: layout= places every layer; leave out first, last, account_embedding "
                "and account_loss");
  if (ends_given && (s.account_embedding || s.account_loss))
    return fail(Code::invalid_argument,
                "megatron: first= and last= say how many layers the end stages have; leave out "
                "account_embedding and account_loss");
  if (s.vpp > 1 && s.pp == 1)
    return fail(Code::invalid_argument,
                fmt::format("megatron: vpp={} needs pp of 2 or more: virtual stages are chunks of "
                            "pipeline stages",
                            s.vpp));
  return {};
}

Result<> read_names(const LayoutSpec& spec, MegatronSizes& s) {
  s.fused_norms = RESHARD_TRY(spec.word("norms", {"fused", "separate"})) == "fused";
  s.sequential_experts =
      RESHARD_TRY(spec.word("experts", {"grouped", "sequential"})) == "sequential";
  s.old_mamba_names = RESHARD_TRY(spec.word("mamba_names", {"new", "old"})) == "old";
  s.new_mtp_names = RESHARD_TRY(spec.word("mtp_names", {"old", "new"})) == "new";
  s.mtp = RESHARD_TRY(flag(spec, "mtp", true));
  using Down = MegatronSizes::MlaDown;
  s.mla_down = s.fused_norms ? Down::duplicated : Down::sharded;
  if (spec.keys.contains("mla_down")) {
    const std::string down = RESHARD_TRY(spec.word("mla_down", {"duplicated", "sharded", "fused"}));
    s.mla_down = down == "fused"     ? Down::fused
                 : down == "sharded" ? Down::sharded
                                     : Down::duplicated;
  }
  return {};
}

/// What is stored in another order or by another value where names and shapes are the same.
Result<> read_values(const LayoutSpec& spec, MegatronSizes& s) {
  s.glu_interleave = RESHARD_TRY(spec.integer("glu_interleave", 0));
  s.shared_glu_interleave = RESHARD_TRY(spec.integer("shared_glu_interleave", 0));
  if (!spec.keys.contains("gamma")) return {};
  const std::string gamma = RESHARD_TRY(spec.word("gamma", {"stored", "plain", "zero_centered"}));
  using Gamma = MegatronSizes::Gamma;
  s.gamma = gamma == "stored"  ? Gamma::stored
            : gamma == "plain" ? Gamma::plain
                               : Gamma::zero_centered;
  return {};
}

}  // namespace

Result<MegatronSizes> read_megatron_sizes(const LayoutSpec& spec) {
  RESHARD_TRY(spec.only({"tp",           "cp",
                         "ep",           "etp",
                         "dp",           "pp",
                         "vpp",          "first",
                         "last",         "layout",
                         "order",        "account_embedding",
                         "account_loss", "norms",
                         "experts",      "mla_down",
                         "gamma",        "mamba_names",
                         "mtp",          "mtp_names",
                         "dtype",        "vocab_multiple",
                         "offset",       "glu_interleave",
                         "shared_glu_interleave"}));
  MegatronSizes s;
  s.tp = RESHARD_TRY(spec.integer("tp", 1));
  s.cp = RESHARD_TRY(spec.integer("cp", 1));
  s.ep = RESHARD_TRY(spec.integer("ep", 1));
  s.etp = RESHARD_TRY(spec.integer("etp", s.tp));
  const Index grid = s.etp * s.ep;
  s.dp = RESHARD_TRY(spec.integer("dp", grid / std::gcd(s.tp * s.cp, grid)));
  s.vocab_multiple = RESHARD_TRY(spec.integer("vocab_multiple", 128));
  s.offset = RESHARD_TRY(spec.integer("offset", 0, 0));
  s.order = RESHARD_TRY(spec.word("order", {"tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"}));
  RESHARD_TRY(read_pipeline(spec, s));
  RESHARD_TRY(read_names(spec, s));
  RESHARD_TRY(read_values(spec, s));
  if (s.tp * s.cp * s.dp % grid != 0)
    return fail(
        Code::invalid_argument,
        fmt::format(
            "megatron: etp*ep={} does not divide tp*cp*dp={}, the ranks of one pipeline stage",
            grid, s.tp * s.cp * s.dp));
  return s;
}

}  // namespace reshard
