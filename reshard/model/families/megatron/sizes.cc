// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/families/megatron/sizes.h"

#include <fmt/format.h>

#include <numeric>

#include "reshard/model/families/error_list.h"

namespace reshard::families {
namespace {

bool flag(const LayoutSpec& spec, const char* key, bool otherwise, ErrorList& wrong) {
  if (!spec.keys.contains(key)) return otherwise;
  return wrong.take(spec.one_of(key, {"0", "1"})) == "1";
}

void read_pipeline(const LayoutSpec& spec, MegatronSizes& s, ErrorList& wrong) {
  s.pp = wrong.take(spec.integer("pp", 1), Index{1});
  s.vpp = wrong.take(spec.integer("vpp", 1), Index{1});
  s.first = wrong.take(spec.integer("first", 0));
  s.last = wrong.take(spec.integer("last", 0));
  s.account_embedding = flag(spec, "account_embedding", false, wrong);
  s.account_loss = flag(spec, "account_loss", false, wrong);
  s.accounts_given = spec.keys.contains("account_embedding") || spec.keys.contains("account_loss");
  if (const auto it = spec.keys.find("layout"); it != spec.keys.end()) s.pipeline = it->second;
  const bool ends_given = s.first > 0 || s.last > 0;
  if (!s.pipeline.empty() && (ends_given || s.accounts_given))
    wrong.refuse(
        "layout= places every layer; leave out first, last, account_embedding and account_loss");
  if (ends_given && (s.account_embedding || s.account_loss))
    wrong.refuse(
        "first= and last= say how many layers the end stages have; leave out account_embedding and "
        "account_loss");
  if (s.vpp > 1 && s.pp == 1)
    wrong.refuse(fmt::format(
        "vpp={} needs pp of 2 or more: virtual stages are chunks of pipeline stages", s.vpp));
}

void read_names(const LayoutSpec& spec, MegatronSizes& s, ErrorList& wrong) {
  s.fused_norms = wrong.take(spec.one_of("norms", {"fused", "separate"})) == "fused";
  s.sequential_experts =
      wrong.take(spec.one_of("experts", {"grouped", "sequential"})) == "sequential";
  s.old_mamba_names = wrong.take(spec.one_of("mamba_names", {"new", "old"})) == "old";
  s.new_mtp_names = wrong.take(spec.one_of("mtp_names", {"old", "new"})) == "new";
  s.mtp = flag(spec, "mtp", true, wrong);
  using Down = MegatronSizes::MlaDown;
  s.mla_down = s.fused_norms ? Down::duplicated : Down::sharded;
  if (spec.keys.contains("mla_down")) {
    const std::string down =
        wrong.take(spec.one_of("mla_down", {"duplicated", "sharded", "fused"}));
    s.mla_down = down == "fused"     ? Down::fused
                 : down == "sharded" ? Down::sharded
                                     : Down::duplicated;
  }
}

/// Reads the keys that change the order or values of elements but no names or shapes.
void read_values(const LayoutSpec& spec, MegatronSizes& s, ErrorList& wrong) {
  s.glu_interleave = wrong.take(spec.integer("glu_interleave", 0));
  s.shared_glu_interleave = wrong.take(spec.integer("shared_glu_interleave", 0));
  if (!spec.keys.contains("gamma")) return;
  const std::string gamma = wrong.take(spec.one_of("gamma", {"stored", "plain", "zero_centered"}));
  using Gamma = MegatronSizes::Gamma;
  s.gamma = gamma == "stored"  ? Gamma::stored
            : gamma == "plain" ? Gamma::plain
                               : Gamma::zero_centered;
}

}  // namespace

Result<MegatronSizes> read_megatron_sizes(const LayoutSpec& spec) {
  ErrorList wrong("megatron");
  wrong.add(spec.check_keys({"tp",
                             "cp",
                             "ep",
                             "etp",
                             "dp",
                             "pp",
                             "vpp",
                             "first",
                             "last",
                             "layout",
                             "order",
                             "account_embedding",
                             "account_loss",
                             "norms",
                             "experts",
                             "mla_down",
                             "gamma",
                             "mamba_names",
                             "mtp",
                             "mtp_names",
                             "dtype",
                             "vocab_multiple",
                             "offset",
                             "glu_interleave",
                             "shared_glu_interleave"}));
  MegatronSizes s;
  s.tp = wrong.take(spec.integer("tp", 1), Index{1});
  s.cp = wrong.take(spec.integer("cp", 1), Index{1});
  s.ep = wrong.take(spec.integer("ep", 1), Index{1});
  s.etp = wrong.take(spec.integer("etp", s.tp), Index{1});
  const Index grid = s.etp * s.ep;
  s.dp = wrong.take(spec.integer("dp", grid / std::gcd(s.tp * s.cp, grid)), Index{1});
  s.vocab_multiple = wrong.take(spec.integer("vocab_multiple", 128));
  s.offset = wrong.take(spec.integer("offset", 0, 0));
  s.order = wrong.take(spec.one_of("order", {"tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"}));
  read_pipeline(spec, s, wrong);
  read_names(spec, s, wrong);
  read_values(spec, s, wrong);
  RESHARD_TRY(wrong.result());
  return s;
}

}  // namespace reshard::families
