// SPDX-License-Identifier: Apache-2.0
// Protects: a session's quantised target holds, byte for byte, what quantising its local tensors
// (or the canonical ones, where the grid is theirs) gives, wherever the conversion is done, also
// where shards cut blocks; and quantised sources are what their values are.
#include <gtest/gtest.h>

#include <cstring>

#include "reshard/model/configs_testutil.h"
#include "reshard/refit/quantised_oracle_testutil.h"
#include "reshard/refit/session.h"
#include "reshard/transport/conformance_ranks_testutil.h"
#include "reshard/transport/inproc.h"

namespace reshard {
namespace {

/// Rows and columns that shards of two and four cut at 32 and mostly at 128.
ModelConfig even_moe() {
  ModelConfig c = tiny_moe();
  c.hidden_size = 256;
  c.intermediate_size = 1024;
  c.moe_intermediate_size = 256;
  c.vocab_size = 96;
  c.head_dim = 64;
  return c;
}

struct Case {
  std::string name;
  ModelConfig config;
  std::string from, to;
  int ranks;
  std::string from_format, to_format;  ///< "": plain
  BlockGrid from_grid = BlockGrid::tensor, to_grid = BlockGrid::local;
  bool as_stored = false;  ///< equal formats, exact: bytes move as they are.
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

constexpr auto kMegatron = "megatron:tp=2,pp=2,ep=2,etp=1";
constexpr auto kVllm = "vllm:tp=4,offset=3";
constexpr auto kLocal = BlockGrid::local;
constexpr auto kTensor = BlockGrid::tensor;

std::vector<Case> cases() {
  return {
      {"mxfp8", even_moe(), kMegatron, kVllm, 8, "", "mxfp8"},
      {"mxfp8_cut", wide_moe(), kMegatron, kVllm, 8, "", "mxfp8"},
      {"mxfp8_swizzled", wide_moe(), kMegatron, kVllm, 8, "", "mxfp8_swizzled"},
      {"mxfp8_tensor_grid", even_moe(), kMegatron, kVllm, 8, "", "mxfp8", kTensor, kTensor},
      {"mxfp8_tensor_grid_cut", wide_moe(), kMegatron, kVllm, 8, "", "mxfp8", kTensor, kTensor},
      {"fp8_block", even_moe(), kMegatron, kVllm, 8, "", "fp8_block"},
      {"fp8_block_cut", wide_moe(), kMegatron, kVllm, 8, "", "fp8_block"},
      {"fp8_block_tensor_grid_cut", wide_moe(), "megatron:tp=4", "vllm:tp=2", 4, "", "fp8_block",
       kTensor, kTensor},
      {"fp8_group_pow2", wide_moe(), kMegatron, kVllm, 8, "", "fp8_group_pow2"},
      {"fp8_channel", wide_moe(), kMegatron, kVllm, 8, "", "fp8_channel"},
      {"fp8_tensor", wide_moe(), kMegatron, kVllm, 8, "", "fp8_tensor"},
      {"nvfp4", even_moe(), kMegatron, kVllm, 8, "", "nvfp4"},
      {"nvfp4_swizzled", even_moe(), kMegatron, kVllm, 8, "", "nvfp4_swizzled"},
      {"mxfp4", even_moe(), kMegatron, kVllm, 8, "", "mxfp4"},
      {"from_fp8_block", wide_moe(), "hf:shards=2", kVllm, 7, "fp8_block", ""},
      {"from_fp8_block_cut", wide_moe(), kMegatron, kVllm, 8, "fp8_block", ""},
      {"from_mxfp8_local", even_moe(), kMegatron, kVllm, 8, "mxfp8", "", kLocal},
      {"from_nvfp4", even_moe(), "hf:shards=1", kVllm, 7, "nvfp4", ""},
      {"fp8_block_to_mxfp8", wide_moe(), "hf:shards=2", kVllm, 7, "fp8_block", "mxfp8"},
      {"fp8_block_as_it_is", wide_moe(), "hf:shards=2", kVllm, 7, "fp8_block", "fp8_block", kTensor,
       kTensor, true},
      {"mxfp8_as_it_is", even_moe(), kMegatron, kVllm, 8, "mxfp8", "mxfp8", kTensor, kTensor, true},
  };
}

OracleSide side_of(const std::string& layout, const Case& c, const std::string& format,
                   BlockGrid grid, const std::shared_ptr<const ModelSpec>& model) {
  auto plain = layout_of(layout, model, c.config);
  if (format.empty()) return OracleSide(plain);
  std::set<std::string> chosen = projections(*model);
  // vLLM's q, k and v are of unequal rows, which tiles of 128 do not allow.
  const bool swizzled = format.find("swizzled") != std::string::npos;
  if (swizzled)
    std::erase_if(chosen, [](const auto& n) { return n.find("self_attn") != std::string::npos; });
  return OracleSide(plain, {*quant_format_from_name(format), grid, chosen, std::string()});
}

struct Way {
  std::string name;
  ConvertWhere convert;
  RefitPath path;
  Buffering buffering;
  Index staging;
  int threads;
};
std::ostream& operator<<(std::ostream& out, const Way& way) { return out << way.name; }

std::vector<Way> ways() {
  constexpr Index kMuch = Index{64} << 20, kLittle = Index{96} << 10;
  return {
      {"receiver", ConvertWhere::receiver, RefitPath::direct, Buffering::in_place, kMuch, 1},
      {"sender", ConvertWhere::sender, RefitPath::direct, Buffering::in_place, kMuch, 2},
      {"receiver_waves", ConvertWhere::receiver, RefitPath::message, Buffering::doubled, kLittle,
       2},
      {"sender_waves", ConvertWhere::sender, RefitPath::message, Buffering::doubled, kLittle, 1},
  };
}

class QuantisedSessions : public testing::TestWithParam<std::tuple<Case, Way>> {};
INSTANTIATE_TEST_SUITE_P(Formats, QuantisedSessions,
                         testing::Combine(testing::ValuesIn(cases()), testing::ValuesIn(ways())),
                         [](const auto& tested) {
                           return std::get<0>(tested.param).name + "_" +
                                  std::get<1>(tested.param).name;
                         });

/// One rank's part of memory of all ranks.
RankBuffers mine(const RankBuffers& all, Rank me) {
  const std::vector<Rank> ranks(all.layout().ranks().contains(me) ? 1 : 0, me);
  return *RankBuffers::allocate(all.shared_layout(), ranks, {.shared = true});
}

TEST_P(QuantisedSessions, hold_what_the_oracle_says) {
  const auto& [c, way] = GetParam();
  const auto model = model_of(c.config);
  OracleSide source = side_of(c.from, c, c.from_format, c.from_grid, model);
  OracleSide target = side_of(c.to, c, c.to_format, c.to_grid, model);
  const auto ended = run_group_as_threads<InprocGroup>(c.ranks, [&, &c = c,
                                                                 &way = way](RankEnds& ends) {
    const Rank me = ends.rank();
    const RankBuffers from = mine(*source.stored, me), to = mine(*target.stored, me),
                      back = mine(*target.stored, me);
    SessionSide source_side = source.side(), target_side = target.side();
    if (!from.ranks().empty()) source_side.buffers = &from;
    if (!to.ranks().empty()) target_side.buffers = &to;
    if (!to.ranks().empty()) target_side.back = &back;
    SessionOptions options;
    options.convert = way.convert;
    options.refit.path = way.path;
    options.refit.staging_bytes = way.staging;
    options.refit.threads = way.threads;
    options.buffering = way.buffering;
    options.prove = ProveWhen::always;
    auto session =
        Session::prepare(*ends.transport, *ends.control, source_side, target_side, options);
    ASSERT_EQ(outcome(session), "");
    for (const std::int64_t version : {1, 2, 3}) {
      if (me == Rank(0)) {
        fill_sides(source, target, version);
        if (c.as_stored) move_stored(source, target);
      }
      ASSERT_TRUE(ends.control->barrier(patient()));
      for (const SlotId slot : from.layout().slots_of(me))
        if (from.bytes(me, slot) > 0 && !from.ranks().empty())
          std::memcpy(from.at(me, slot), source.stored->at(me, slot),
                      static_cast<std::size_t>(from.bytes(me, slot)));
      const auto report = session->refit(version);
      ASSERT_EQ(outcome(report), "");
      EXPECT_EQ(report->plan_seconds, 0);
      if (!to.ranks().empty()) {
        EXPECT_EQ(different_bytes(session->held().buffer == 0 ? to : back, *target.stored, me), 0)
            << "version " << version;
      }
      EXPECT_EQ(outcome(session->prove()), "");
      ASSERT_TRUE(ends.control->barrier(patient()));
    }
    EXPECT_EQ(session->conversions().direct + session->conversions().at_sender +
                  session->conversions().at_receiver + session->conversions().between,
              model->size());
    EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
  });
  EXPECT_EQ(outcome(ended), "");
}

}  // namespace
}  // namespace reshard
