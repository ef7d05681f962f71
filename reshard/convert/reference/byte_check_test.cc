// SPDX-License-Identifier: Apache-2.0
// Protects: the proof of a run that quantises notices every wrong byte of data, scales, factors and
// plain tensors, and says which tensor and element it belongs to.
#include "reshard/convert/reference/byte_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reshard/convert/reference/reference_sides.h"
#include "reshard/convert/reference/refit_check.h"
#include "reshard/io/hf/config.h"
#include "reshard/model/canonical.h"

namespace reshard {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

constexpr const char* kConfig = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 128,
  "intermediate_size": 320, "num_hidden_layers": 1, "num_attention_heads": 4,
  "num_key_value_heads": 2, "vocab_size": 50, "tie_word_embeddings": false})";

/// A job and the target's memory after a correct refit, to be damaged.
class Made {
 public:
  Made(const std::string& from, const std::string& to) {
    model_.config = parse_config(kConfig).value();
    model_.tensors = std::make_shared<ModelSpec>(canonical_tensors(*model_.config).value());
    pair_ = make_layout_pair(model_, from, to).value();
    const auto& stored = pair_.to.stored();
    target_ = RankBuffers::allocate(stored, stored->ranks().members()).value();
    auto sides = ReferenceSides::of(job()).value();
    EXPECT_TRUE(fill_from_reference(sides.target(), *target_, 2, {}).has_value());
  }

  ReferenceJob job() const { return {model_, pair_}; }
  const ModelLayout& stored() const { return *pair_.to.stored(); }
  SlotId slot(const std::string& name) const {
    for (Index i = 0; i < stored().num_slots(); ++i)
      if (const SlotId id(static_cast<SlotId::rep>(i)); stored().slot(id).name == name) return id;
    ADD_FAILURE() << "no local tensor " << name;
    return SlotId(0);
  }

  /// The error message of the proof; "" if there is none.
  std::string said() const {
    const auto checked = check_quantised_refit(job(), *target_, 2, {});
    return checked ? "" : checked.error().message;
  }
  /// The same with one byte flipped.
  std::string said_of(Rank r, SlotId slot, Index byte) const {
    std::byte& at = target_->at(r, slot)[byte];
    at ^= std::byte{0x11};
    std::string said = this->said();
    at ^= std::byte{0x11};
    return said;
  }
  const RankBuffers& target() const { return *target_; }

 private:
  Model model_;
  LayoutPair pair_;
  std::optional<RankBuffers> target_;
};

TEST(MadeCheck, what_was_made_is_right) {
  for (const char* to : {"vllm:tp=2,quant=mxfp8", "vllm:tp=2,quant=nvfp4_swizzled",
                         "vllm:tp=2,quant=fp8_block,quant_grid=tensor"})
    EXPECT_EQ(Made("megatron:tp=2", to).said(), "") << to;
  EXPECT_EQ(Made("vllm:tp=2,quant=mxfp8", "megatron:tp=4").said(), "");
}

TEST(MadeCheck, notices_the_first_and_the_last_byte_of_every_local_tensor) {
  for (const char* to : {"vllm:tp=2,quant=mxfp8", "vllm:tp=1,quant=nvfp4_swizzled"}) {
    const Made made("megatron:tp=2", to);
    for (const Rank r : made.target().ranks())
      for (const SlotId slot : made.stored().slots_of(r))
        for (const Index byte : {Index{0}, made.target().bytes(r, slot) - 1}) {
          const std::string& name = made.stored().slot(slot).name;
          EXPECT_THAT(made.said_of(r, slot, byte),
                      HasSubstr("rank " + std::to_string(r.value()) + ", local tensor '" + name))
              << to;
        }
  }
}

TEST(MadeCheck, names_tensor_and_element_of_data_and_scales) {
  const Made made("megatron:tp=2", "vllm:tp=2,quant=mxfp8");
  const std::string mlp = "model.layers.0.mlp.";
  // Rank 1 has rows 160 to 319 of gate and of up, one under the other, of 128 columns.
  EXPECT_THAT(
      made.said_of(Rank(1), made.slot(mlp + "gate_up_proj.weight"), 170 * 128 + 3),
      HasSubstr("tensor 'model.layers.0.mlp.up_proj.weight' element [170, 3]: want byte 0x"));
  EXPECT_THAT(made.said_of(Rank(1), made.slot(mlp + "gate_up_proj.weight_scale"), 170 * 4 + 2),
              HasSubstr("the scale of the block that begins at tensor "
                        "'model.layers.0.mlp.up_proj.weight' element [170, 64]"));
  EXPECT_THAT(made.said_of(Rank(0), made.slot("model.norm.weight"), 7),
              HasSubstr("tensor 'model.norm.weight' element [3]"));
}

TEST(MadeCheck, names_factors_and_swizzled_scales) {
  const Made made("megatron:tp=2", "vllm:tp=1,quant=nvfp4_swizzled");
  const std::string name = "model.layers.0.self_attn.o_proj.weight";
  EXPECT_THAT(made.said_of(Rank(0), made.slot(name + "_scale_2"), 3),
              HasSubstr("the factor of tensor '" + name + "' element [0, 0]"));
  // Row 33 and column 5 of the blocks: tile 1, 16 bytes a row of 32, 4 bytes a row above.
  EXPECT_THAT(made.said_of(Rank(0), made.slot(name + "_scale"), 512 + 1 * 16 + 1 * 4 + 1),
              HasSubstr("begins at tensor '" + name + "' element [33, 80]"));
  // Two data in a byte, the even column in the low half.
  EXPECT_THAT(made.said_of(Rank(0), made.slot(name), 2 * 64 + 5),
              HasSubstr("tensor '" + name + "' element [2, 10]"));
}

TEST(MadeCheck, compares_with_other_values_where_the_seed_is_another) {
  const Made made("megatron:tp=2", "vllm:tp=2,quant=mxfp8");
  const ReferenceJob job = made.job();
  const ReferenceJob changed{job.model, job.pair, 1};
  EXPECT_FALSE(check_quantised_refit(changed, made.target(), 2, {}).has_value());
}

}  // namespace
}  // namespace reshard
