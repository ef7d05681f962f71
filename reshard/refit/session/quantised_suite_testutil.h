// SPDX-License-Identifier: Apache-2.0
// Sessions with quantised sides, for any transport: jobs, ways to run them, and one rank's part.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "reshard/base/combinations_testutil.h"
#include "reshard/exec/refit_rank_testutil.h"
#include "reshard/model/configs_testutil.h"
#include "reshard/refit/session.h"
#include "reshard/refit/session/quantised_oracle_testutil.h"
#include "reshard/transport/testing/conformance_ranks_testutil.h"

namespace reshard::quantised {

/// Rows and columns that shards of two and four cut at 32 and mostly at 128.
inline ModelConfig even_moe() {
  ModelConfig c = tiny_moe();
  c.num_hidden_layers = 2;
  c.layers.resize(2);
  c.num_experts = 4;
  c.hidden_size = 256;
  c.intermediate_size = 512;
  c.moe_intermediate_size = 256;
  c.vocab_size = 96;
  c.head_dim = 64;
  return c;
}

/// Shards of two and four cut blocks of 32, of which each has several.
inline ModelConfig large_moe() {
  ModelConfig c = even_moe();
  c.intermediate_size = 1056;
  c.moe_intermediate_size = 528;
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
inline std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

inline constexpr auto kMegatron = "megatron:tp=2,pp=2,ep=2,etp=1";
inline constexpr auto kVllm = "vllm:tp=4,offset=3";
inline constexpr auto kLocal = BlockGrid::local;
inline constexpr auto kTensor = BlockGrid::tensor;

inline std::vector<Case> cases() {
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
      {"mxfp8_both_cut", large_moe(), "megatron:tp=4", "vllm:tp=4", 4, "", "mxfp8", kTensor,
       kTensor},
      {"nvfp4_tensor_grid", even_moe(), "megatron:tp=4", "vllm:tp=2", 4, "", "nvfp4", kTensor,
       kTensor},
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
      {"fp8_block_to_mxfp8_cut", wide_moe(), "hf:shards=2", kVllm, 7, "fp8_block", "mxfp8", kTensor,
       kTensor},
      {"fp8_block_as_it_is", wide_moe(), "hf:shards=2", kVllm, 7, "fp8_block", "fp8_block", kTensor,
       kTensor, true},
      {"mxfp8_as_it_is", even_moe(), kMegatron, kVllm, 8, "mxfp8", "mxfp8", kTensor, kTensor, true},
  };
}

/// One case of each route, for slow transports.
inline std::vector<Case> few_cases() {
  std::vector<Case> few;
  for (const Case& c : cases())
    for (const char* name :
         {"mxfp8", "mxfp8_swizzled", "mxfp8_both_cut", "fp8_block_tensor_grid_cut",
          "from_fp8_block_cut", "fp8_block_to_mxfp8", "fp8_block_as_it_is"})
      if (c.name == name) few.push_back(c);
  return few;
}

inline OracleSide side_of(const std::string& layout, const Case& c, const std::string& format,
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
  ConversionSide convert;
  RefitPath path;
  Buffering buffering;
  Index staging;
  int threads;
  bool on_gpu = false;  ///< all memory of all ranks.
};
inline std::ostream& operator<<(std::ostream& out, const Way& way) { return out << way.name; }

/// The first and the third differ in conversion side, path and buffering, and so do the second and
/// the fourth: half_of() gives each case one of these two pairs.
inline std::vector<Way> ways() {
  constexpr Index kMuch = Index{64} << 20, kLittle = Index{96} << 10;
  return {
      {"receiver", ConversionSide::receiver, RefitPath::direct, Buffering::in_place, kMuch, 1},
      {"sender", ConversionSide::sender, RefitPath::direct, Buffering::in_place, kMuch, 2},
      {"sender_waves", ConversionSide::sender, RefitPath::message, Buffering::doubled, kLittle, 1},
      {"receiver_waves", ConversionSide::receiver, RefitPath::message, Buffering::doubled, kLittle,
       2},
  };
}

inline std::vector<Way> gpu_ways() {
  constexpr Index kMuch = Index{64} << 20, kLittle = Index{96} << 10;
  return {
      {"gpu_receiver", ConversionSide::receiver, RefitPath::automatic, Buffering::doubled, kMuch, 1,
       true},
      {"gpu_receiver_waves", ConversionSide::receiver, RefitPath::message, Buffering::in_place,
       kLittle, 2, true},
      {"gpu_sender_waves", ConversionSide::sender, RefitPath::message, Buffering::doubled, kLittle,
       1, true},
  };
}

/// Each case with half of the ways: with every other one, in turn from the first or the second.
inline std::vector<std::tuple<Case, Way>> half_of(const std::vector<Case>& all,
                                                  const std::vector<Way>& in, std::size_t first) {
  return combinations(all, in, 2, first);
}

/// A job with what both sides must hold.
struct Job {
  explicit Job(const Case& c)
      : of(c),
        model(model_of(c.config)),
        source(side_of(c.from, c, c.from_format, c.from_grid, model)),
        target(side_of(c.to, c, c.to_format, c.to_grid, model)) {}
  void fill(std::int64_t version) {
    fill_sides(source, target, version);
    if (of.as_stored) move_stored(source, target);
  }
  Case of;
  std::shared_ptr<const ModelSpec> model;
  OracleSide source, target;
};

inline SessionOptions options_of(const Way& way) {
  SessionOptions options;
  options.convert = way.convert;
  options.refit.path = way.path;
  options.refit.staging_bytes = way.staging;
  options.refit.threads = way.threads;
  options.buffering = way.buffering;
  options.verify = VerifyMode::always;
  return options;
}

/// One rank's part of memory of all ranks.
inline RankBuffers mine(const RankBuffers& all, Rank me) {
  const std::vector<Rank> ranks(all.layout().ranks().contains(me) ? 1 : 0, me);
  return *RankBuffers::allocate(all.shared_layout(), ranks, {.shared = true});
}

inline void copy_to(const RankBuffers& all, const RankBuffers& to, Rank me) {
  if (to.ranks().empty()) return;
  for (const SlotId slot : to.layout().slots_of(me))
    if (to.bytes(me, slot) > 0)
      std::memcpy(to.at(me, slot), all.at(me, slot), static_cast<std::size_t>(to.bytes(me, slot)));
}

/// Refits versions 1 to `versions` on one rank and expects every byte in place after each. Ranks
/// that are threads share the job, which rank 0 fills; processes have their own.
inline void run_as_rank(RankEnds& ends, Job& job, const Way& way, int versions,
                        bool shared_memory) {
  const Rank me = ends.rank();
  const RefitRankSide from(mine(*job.source.stored, me), way.on_gpu),
      to(mine(*job.target.stored, me), way.on_gpu), back(mine(*job.target.stored, me), way.on_gpu);
  SessionSide source = job.source.side(), target = job.target.side();
  source.buffers = from.buffers();
  target.buffers = to.buffers();
  target.back = back.buffers();
  for (const RefitRankSide* side : {&to, &back}) ASSERT_EQ(outcome(side->write()), "");
  auto session = Session::prepare(*ends.transport, *ends.control, source, target, options_of(way));
  ASSERT_EQ(outcome(session), "");
  for (std::int64_t version = 1; version <= versions; ++version) {
    if (!shared_memory || me == Rank(0)) job.fill(version);
    ASSERT_TRUE(ends.control->barrier(patient()));
    copy_to(*job.source.stored, from.host, me);
    ASSERT_EQ(outcome(from.write()), "");
    const auto report = session->refit(version);
    ASSERT_EQ(outcome(report), "");
    EXPECT_EQ(report->plan_seconds, 0);
    if (to.buffers() != nullptr) {
      const RefitRankSide& now = session->target_version().buffer == 0 ? to : back;
      ASSERT_EQ(outcome(now.read()), "");
      EXPECT_EQ(different_bytes(now.host, *job.target.stored, me), 0) << "version " << version;
    }
    EXPECT_EQ(outcome(session->verify()), "");
    ASSERT_TRUE(ends.control->barrier(patient()));
  }
  const ConversionCounts& counts = session->conversions();
  EXPECT_EQ(counts.direct + counts.at_sender + counts.at_receiver + counts.between,
            job.model->size());
  EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
}

}  // namespace reshard::quantised
