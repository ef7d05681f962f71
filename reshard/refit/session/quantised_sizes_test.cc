// SPDX-License-Identifier: Apache-2.0
// Protects: shards of published sizes that are not powers of two, over 3, 5 and 8 ranks, cut blocks
// of 128, 32 and 16 on either side; the result is byte for byte what the oracle computes.
#include <gtest/gtest.h>

#include "reshard/refit/session/quantised_suite_testutil.h"
#include "reshard/transport/inproc/inproc.h"

namespace reshard::quantised {
namespace {

/// One dense layer whose feed-forward is cut by tensor parallel ranks, which divide `heads`.
ModelConfig one_layer(Index hidden, Index intermediate, Index heads) {
  ModelConfig c = tiny_dense();
  c.num_hidden_layers = 1;
  c.layers.resize(1);
  c.hidden_size = hidden;
  c.intermediate_size = intermediate;
  c.num_attention_heads = c.num_key_value_heads = heads;
  c.head_dim = 16;
  return c;
}

/// 2880: 960 and 576 columns, 7.5 and 4.5 blocks of 128. 360: 120 and 72, which cut blocks of 32
/// and of 16. 1856: 464 and 232, 14.5 blocks of 32 and of 16. 2688: 1344 and 336, 10.5 blocks of
/// 128 and of 32.
std::vector<Case> uneven_cases() {
  const ModelConfig c2880 = one_layer(240, 2880, 15), c360 = one_layer(240, 360, 15),
                    c1856 = one_layer(64, 1856, 16), c2688 = one_layer(64, 2688, 16);
  const char *m3 = "megatron:tp=3", *v5 = "vllm:tp=5,offset=3", *m5 = "megatron:tp=5",
             *v3 = "vllm:tp=3,offset=4", *m4 = "megatron:tp=4", *v8 = "vllm:tp=8,offset=2",
             *m2 = "megatron:tp=2";
  return {
      {"fp8_block_2880_3_to_5", c2880, m3, v5, 8, "", "fp8_block"},
      {"fp8_block_2880_5_to_3", c2880, m5, v3, 7, "", "fp8_block"},
      {"fp8_block_grid_2880_3_to_5", c2880, m3, v5, 8, "", "fp8_block", kTensor, kTensor},
      {"from_fp8_block_2880_3_to_5", c2880, m3, v5, 8, "fp8_block", ""},
      {"from_fp8_block_2880_5_to_3", c2880, m5, v3, 7, "fp8_block", ""},
      {"mxfp8_360_3_to_5", c360, m3, v5, 8, "", "mxfp8"},
      {"mxfp8_360_5_to_3", c360, m5, v3, 7, "", "mxfp8"},
      {"mxfp8_grid_360_3_to_5", c360, m3, v5, 8, "", "mxfp8", kTensor, kTensor},
      {"from_mxfp8_360_3_to_5", c360, m3, v5, 8, "mxfp8", ""},
      {"nvfp4_360_3_to_5", c360, m3, v5, 8, "", "nvfp4"},
      {"nvfp4_360_5_to_3", c360, m5, v3, 7, "", "nvfp4"},
      {"from_nvfp4_360_3_to_5", c360, m3, v5, 8, "nvfp4", ""},
      {"mxfp4_360_3_to_5", c360, m3, v5, 8, "", "mxfp4"},
      {"from_mxfp4_360_5_to_3", c360, m5, v3, 7, "mxfp4", ""},
      {"fp8_block_to_mxfp8_360_3_to_5", c360, m3, v5, 8, "fp8_block", "mxfp8"},
      {"mxfp8_1856_4_to_8", c1856, m4, v8, 10, "", "mxfp8"},
      {"nvfp4_1856_4_to_8", c1856, m4, v8, 10, "", "nvfp4"},
      {"from_mxfp8_1856_4_to_8", c1856, m4, v8, 10, "mxfp8", ""},
      {"fp8_block_2688_2_to_8", c2688, m2, v8, 10, "", "fp8_block"},
      {"mxfp8_2688_2_to_8", c2688, m2, v8, 10, "", "mxfp8"},
      {"fp8_group_2688_2_to_8", c2688, m2, v8, 10, "", "fp8_group"},
  };
}

class UnevenSessions : public testing::TestWithParam<std::tuple<Case, Way>> {};
INSTANTIATE_TEST_SUITE_P(Formats, UnevenSessions,
                         testing::ValuesIn(half_of(uneven_cases(), ways(), 0)),
                         [](const auto& tested) {
                           return std::get<0>(tested.param).name + "_" +
                                  std::get<1>(tested.param).name;
                         });

TEST_P(UnevenSessions, hold_what_the_oracle_says) {
  const auto& [c, way] = GetParam();
  Job job(c);
  const auto ended = run_group_as_threads<InprocGroup>(
      c.ranks, [&, &way = way](RankEnds& ends) { run_as_rank(ends, job, way, 2, true); });
  EXPECT_EQ(outcome(ended), "");
}

}  // namespace
}  // namespace reshard::quantised
