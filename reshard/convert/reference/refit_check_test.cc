// SPDX-License-Identifier: Apache-2.0
// Protects: the proof of a run notices every single wrong byte, wherever it is, and says the same
// in one process and over ranks that have only their own memory.
#include "reshard/convert/reference/refit_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reshard/convert/reference/oracle_values.h"
#include "reshard/exec/in_process.h"
#include "reshard/io/hf/config.h"
#include "reshard/io/make_layout.h"
#include "reshard/model/canonical.h"
#include "reshard/transport/inproc/inproc.h"
#include "reshard/transport/testing/rank_threads_testutil.h"

namespace reshard {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kSeed = 7;
constexpr const char* kConfig = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32,
  "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "vocab_size": 50, "tie_word_embeddings": false})";

Model small_llama() {
  Model model;
  model.config = parse_config(kConfig).value();
  model.tensors = std::make_shared<ModelSpec>(canonical_tensors(*model.config).value());
  return model;
}

/// A refit that was done right, to be damaged.
class RunProof : public ::testing::Test {
 protected:
  RunProof() : source_(allocate("megatron:tp=2,pp=2")), target_(allocate("vllm:tp=2,replicas=2")) {
    EXPECT_TRUE(fill_from_oracle(source_, kSeed, 2, {}).has_value());
    const auto planner = Planner::make(source_.shared_layout(), target_.shared_layout()).value();
    auto refit = InProcessRefit::prepare(planner, source_, target_).value();
    EXPECT_TRUE(refit.run().has_value());
  }

  RankBuffers allocate(const std::string& layout) const {
    const auto made = make_layout(layout, model_).value();
    return RankBuffers::allocate(made, made->ranks().members()).value();
  }

  /// In one process, and over ranks as threads, which must find the same.
  Result<> prove(std::optional<std::uint64_t> seed = kSeed,
                 const std::set<std::string>& only = {}) const {
    auto proved = check_refit(source_, target_, seed, 2, {}, only);
    const std::string here = proved ? "" : proved.error().message;
    for (const std::string& there : check_over_ranks(seed, only)) {
      // Of several wrong elements, either may come first.
      if (here.find("element [") != std::string::npos) {
        EXPECT_THAT(there, HasSubstr("element ["));
      } else {
        EXPECT_EQ(there, here);
      }
    }
    return proved;
  }

  std::vector<std::string> check_over_ranks(std::optional<std::uint64_t> seed,
                                            const std::set<std::string>& only) const {
    const auto planner = Planner::make(source_.shared_layout(), target_.shared_layout()).value();
    auto group = InprocGroup::create(5).value();  // rank 4 is idle
    std::vector<std::string> said(5);
    const auto ended = run_ranks(5, [&](Rank r) -> Result<> {
      const auto transport = RESHARD_TRY(group.transport(r));
      const auto control = RESHARD_TRY(group.control(r));
      const RankBuffers source = part_of(source_, r), target = part_of(target_, r);
      const bool idle = r == Rank(4);
      said[r.index()] =
          RESHARD_TRY(check_rank_refit(planner, idle ? nullptr : &source, idle ? nullptr : &target,
                                       seed, *transport, *control, {.threads = 1}, only));
      return {};
    });
    EXPECT_TRUE(ended) << ended.error().message;
    return said;
  }

  static RankBuffers part_of(const RankBuffers& all, Rank r) {
    RankBuffers own(all.shared_layout());
    for (SlotId slot : all.layout().slots_of(r)) {
      const auto bytes = static_cast<std::size_t>(all.bytes(r, slot));
      EXPECT_TRUE(own.bind(r, slot, {all.at(r, slot), bytes}));
    }
    return own;
  }

  /// Flips one bit of an element of the tensor on a rank.
  void damage(const RankBuffers& buffers, Rank r, const std::string& tensor) const {
    const ModelLayout& layout = buffers.layout();
    for (const auto& place : layout.parts_of(model_.tensors->find(tensor).value())) {
      const auto fragment = layout.fragment(place, r);
      if (!fragment) continue;
      const Index at = fragment->where.offset * bits(layout.slot(place.slot).dtype) / 8;
      buffers.at(r, place.slot)[at] ^= std::byte{1};
      return;
    }
    FAIL() << tensor << " is not on rank " << r.value();
  }

  Model model_ = small_llama();
  RankBuffers source_, target_;
};

TEST_F(RunProof, holds_for_a_right_refit) {
  const auto proved = prove();
  EXPECT_TRUE(proved.has_value()) << proved.error().message;
  EXPECT_TRUE(prove(std::nullopt).has_value());
}

TEST_F(RunProof, notices_a_byte_on_any_destination_rank) {
  const std::string name = "model.layers.1.mlp.down_proj.weight";
  for (int r = 0; r < 4; ++r) {
    damage(target_, Rank(r), name);
    for (const auto seed : {std::optional(kSeed), std::optional<std::uint64_t>()}) {
      const auto proved = prove(seed);
      ASSERT_FALSE(proved.has_value()) << "rank " << r;
      EXPECT_EQ(proved.error().code, Code::corrupt);
      EXPECT_THAT(proved.error().message, HasSubstr("'" + name + "'"));
    }
    damage(target_, Rank(r), name);
  }
  EXPECT_TRUE(prove().has_value());
}

TEST_F(RunProof, looks_at_what_was_to_be_moved) {
  const std::string moved = "model.layers.1.mlp.down_proj.weight", other = "model.norm.weight";
  damage(target_, Rank(1), other);
  EXPECT_FALSE(prove().has_value());
  EXPECT_TRUE(prove(kSeed, {moved}).has_value());
  damage(target_, Rank(1), moved);
  for (const auto seed : {std::optional(kSeed), std::optional<std::uint64_t>()}) {
    const auto proved = prove(seed, {moved});
    ASSERT_FALSE(proved.has_value());
    EXPECT_THAT(proved.error().message, HasSubstr("'" + moved + "'"));
  }
}

TEST_F(RunProof, notices_replicas_that_differ) {
  damage(target_, Rank(2), "model.norm.weight");
  const auto proved = prove();
  ASSERT_FALSE(proved.has_value());
  EXPECT_THAT(proved.error().message, HasSubstr("target: rank"));
  EXPECT_THAT(proved.error().message, HasSubstr("differs from rank"));
}

TEST_F(RunProof, notices_a_source_that_was_changed_meanwhile) {
  damage(source_, Rank(3), "model.layers.1.self_attn.o_proj.weight");
  const auto proved = prove();
  ASSERT_FALSE(proved.has_value());
  EXPECT_THAT(proved.error().message, HasSubstr("o_proj.weight': source"));
}

TEST_F(RunProof, knows_what_both_sides_have_wrong) {
  const std::string name = "model.layers.0.self_attn.k_proj.weight";
  for (int r = 0; r < 2; ++r) damage(source_, Rank(r), name);
  for (int r = 0; r < 4; ++r) damage(target_, Rank(r), name);
  EXPECT_TRUE(prove(std::nullopt).has_value()) << "fingerprints agree";
  const auto proved = prove();
  ASSERT_FALSE(proved.has_value());
  EXPECT_THAT(proved.error().message, HasSubstr("tensor '" + name + "': element ["));
}

}  // namespace
}  // namespace reshard
