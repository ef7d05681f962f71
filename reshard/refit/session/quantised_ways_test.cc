// SPDX-License-Identifier: Apache-2.0
// Protects: every format is quantised and dequantised on either side, on every path, between
// threads and between processes that share a host.
#include <gtest/gtest.h>

#include "reshard/refit/session/quantised_suite_testutil.h"
#include "reshard/transport/inproc/inproc.h"
#include "reshard/transport/shm/shm_testutil.h"

namespace reshard::quantised {
namespace {

const std::vector<const char*> kFormats = {
    "mxfp8",          "mxfp8_floor", "mxfp8_swizzled", "mxfp4",         "mxfp4_floor",
    "mxfp4_swizzled", "nvfp4",       "nvfp4_swizzled", "nvfp4_divisor", "fp8_block",
    "fp8_block_pow2", "fp8_group",   "fp8_group_pow2", "fp8_channel",   "fp8_tensor"};

ModelConfig small_moe() {
  ModelConfig c = even_moe();
  c.num_hidden_layers = 1;
  c.layers.resize(1);
  c.num_experts = 2;
  c.hidden_size = 128;
  c.intermediate_size = c.moe_intermediate_size = 128;
  return c;
}

/// Every sender holds whole matrices, so it can convert in any format. Tiles of swizzled scales are
/// those of a rank.
Case case_of(const std::string& format, bool to_target) {
  const BlockGrid grid = format.find("swizzled") == std::string::npos ? kTensor : kLocal;
  return {.name = format,
          .config = small_moe(),
          .from = "megatron:tp=1",
          .to = "vllm:tp=1,offset=1",
          .ranks = 2,
          .from_format = to_target ? "" : format,
          .to_format = to_target ? format : "",
          .from_grid = grid,
          .to_grid = grid};
}

std::vector<Way> all_ways() {
  std::vector<Way> out;
  for (const auto convert : {ConversionSide::receiver, ConversionSide::sender})
    for (const auto path : {RefitPath::automatic, RefitPath::direct, RefitPath::message}) {
      std::string name = convert == ConversionSide::sender ? "sender" : "receiver";
      name += path == RefitPath::automatic ? "_automatic"
              : path == RefitPath::direct  ? "_direct"
                                           : "_message";
      out.push_back({name, convert, path, Buffering::in_place, Index{64} << 20, 1});
    }
  return out;
}

class QuantisedWays : public testing::TestWithParam<std::tuple<const char*, Way>> {};
INSTANTIATE_TEST_SUITE_P(Formats, QuantisedWays,
                         testing::ValuesIn(combinations(kFormats, all_ways(), 2)),
                         [](const auto& tested) {
                           return std::string(std::get<0>(tested.param)) + "_" +
                                  std::get<1>(tested.param).name;
                         });

TEST_P(QuantisedWays, hold_what_the_oracle_says_over_each_transport) {
  const auto& [format, way] = GetParam();
  for (const bool to_target : {true, false}) {
    Job job(case_of(format, to_target));
    const auto body = [&, &way = way](RankEnds& ends) { run_as_rank(ends, job, way, 1, true); };
    EXPECT_EQ(outcome(run_group_as_threads<InprocGroup>(2, body)), "") << to_target;
    EXPECT_EQ(outcome(shm_threads("mapped,readv,ring")(2, body)), "") << to_target;
    EXPECT_EQ(outcome(shm_threads("readv,ring")(2, body)), "") << to_target;
  }
}

}  // namespace
}  // namespace reshard::quantised
