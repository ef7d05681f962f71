// SPDX-License-Identifier: Apache-2.0
// Protects: a misspelt name is told the name that it was meant to be, and nothing far-fetched.
#include "reshard/base/closest_name.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>

namespace reshard {
namespace {

std::string closest(std::string_view text, const std::vector<std::string_view>& names) {
  return std::string(closest_name(text, names).value_or("none"));
}

TEST(ClosestName, the_name_with_the_fewest_edits_is_meant) {
  const std::vector<std::string_view> families = {"hf", "megatron", "vllm", "sglang", "fsdp"};
  EXPECT_EQ(closest("vlm", families), "vllm");
  EXPECT_EQ(closest("VLLM", families), "vllm");
  EXPECT_EQ(closest("sgalng", families), "sglang");
  EXPECT_EQ(closest("megatorn", families), "megatron");
  EXPECT_EQ(closest("fdsp", families), "fsdp");
  EXPECT_EQ(closest("tpp", {"pp", "tp", "vpp"}), "tp") << "which begins like it";
  EXPECT_EQ(closest("quant-method", {"quant", "quant_method"}), "quant_method");
}

TEST(ClosestName, what_is_far_from_all_names_means_none) {
  const std::vector<std::string_view> keys = {"pp", "dp", "shards", "offset"};
  EXPECT_EQ(closest("tp", keys), "none") << "one of two characters differs";
  EXPECT_EQ(closest("deepspeed", keys), "none");
  EXPECT_EQ(closest("", keys), "none");
  EXPECT_EQ(closest("tp", {}), "none");
  EXPECT_EQ(closest(std::string(1000, 'a'), {"a"}), "none");
}

TEST(ClosestName, a_prefix_more_or_less_is_closer_than_any_misspelling) {
  EXPECT_EQ(closest("model.norm.weight", {"model.norm.weights", "norm.weight"}), "norm.weight");
  EXPECT_EQ(closest("norm.weight", {"form.weight", "module.model.norm.weight"}),
            "module.model.norm.weight");
  EXPECT_EQ(closest("model.layers.0.mlp.experts.0.gate_proj.weight",
                    {"model.layers.0.mlp.gate.weight", "model.layers.0.mlp.experts.gate_up_proj"}),
            "model.layers.0.mlp.experts.gate_up_proj");
}

TEST(ClosestName, messages_quote_it_or_say_nothing) {
  EXPECT_EQ(did_you_mean("shard", std::array{"offset", "shards"}), " (did you mean 'shards'?)");
  EXPECT_EQ(did_you_mean("x", std::array{"offset", "shards"}), "");
  EXPECT_EQ(did_you_mean_one_of("shard", "offset, shards"), " (did you mean 'shards'?)");
  EXPECT_EQ(did_you_mean_one_of("shard", ""), "");
}

/// The whole table, without a limit.
std::size_t all_edits(const std::string& a, const std::string& b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i)
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      d[i][j] = std::min(
          {d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  return d[a.size()][b.size()];
}

RC_GTEST_PROP(ClosestName, no_other_name_has_fewer_edits, ()) {
  const auto letters = rc::gen::container<std::string>(rc::gen::element('a', 'b', 'c'));
  const auto text = *letters;
  const auto names = *rc::gen::container<std::vector<std::string>>(letters);
  const auto common = [&](const std::string& name) {
    return std::mismatch(text.begin(), text.end(), name.begin(), name.end()).first - text.begin();
  };
  std::string want = "none";
  for (const std::string& name : names) {
    const std::size_t edits = all_edits(text, name);
    if (text.empty() || edits > text.size() / 3) continue;
    const bool first = want == "none";
    const std::size_t least = first ? 0 : all_edits(text, want);
    if (first || edits < least || (edits == least && common(name) > common(want))) want = name;
  }
  RC_ASSERT(closest(text, {names.begin(), names.end()}) == want);
}

}  // namespace
}  // namespace reshard
