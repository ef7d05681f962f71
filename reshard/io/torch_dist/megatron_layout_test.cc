// SPDX-License-Identifier: Apache-2.0
// Protects: of a checkpoint of Megatron's every weight is used, is an equal second name, or is
// refused by name.
#include "reshard/io/torch_dist/megatron_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reshard/io/dcp/dcp_folder_testutil.h"
#include "reshard/io/files/temp_dir_testutil.h"
#include "reshard/io/make_layout.h"
#include "reshard/io/open_model.h"

namespace reshard {
namespace {

using ::testing::AllOf;
using testing::dcp_tensor;
using testing::DcpTensor;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string qwen(int layers, bool tied = false) {
  return R"({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 8,
  "intermediate_size": 12, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 16,
  "torch_dtype": "bfloat16", "num_hidden_layers": )" +
         std::to_string(layers) + R"(, "tie_word_embeddings": )" + (tied ? "true}" : "false}");
}

/// The folder that torch_dist writes for a config, with bytes by position: equal for second names.
class MegatronFolder {
 public:
  explicit MegatronFolder(const std::string& config, const std::string& layout = "torch_dist") {
    dir_.write("config.json", config);
    const auto model = open_model(dir_ / "config.json");
    EXPECT_TRUE(model) << model.error().message;
    const auto side = make_side(layout, *model);
    EXPECT_TRUE(side) << side.error().message;
    for (const TensorSpec& t : side->pieces->tensors)
      tensors_.push_back(dcp_tensor(t.name, t.dtype, t.shape, 1));
    for (const CheckpointEntry& entry : side->pieces->others) objects_.push_back(entry.name);
  }

  void set_config(const std::string& config) const { dir_.write("config.json", config); }
  std::vector<DcpTensor>& tensors() { return tensors_; }
  DcpTensor& tensor(const std::string& name) {
    for (DcpTensor& t : tensors_)
      if (t.spec.name == name) return t;
    ADD_FAILURE() << name;
    return tensors_.front();
  }
  Result<Model> open(const ModelOptions& options = {}) const {
    testing::write_dcp_folder(dir_.path(), tensors_, objects_);
    return open_model(dir_.path(), options);
  }
  std::string error(const ModelOptions& options = {}) const {
    const auto model = open(options);
    return model ? "" : model.error().message;
  }

 private:
  testing::TempDir dir_;
  std::vector<DcpTensor> tensors_;
  std::vector<std::string> objects_;
};

constexpr const char* kLayouts[] = {"torch_dist:layers=single", "torch_dist:layers=stacked"};

TEST(MegatronCheckpoint, what_reshard_writes_opens_without_a_word) {
  for (const char* layout : kLayouts) {
    MegatronFolder folder(qwen(2), layout);
    const auto model = folder.open();
    ASSERT_TRUE(model) << model.error().message;
    EXPECT_TRUE(model->pieces_layout);
    EXPECT_THAT(model->left_out, IsEmpty()) << layout;
  }
}

TEST(MegatronCheckpoint, is_found_below_any_prefix_and_beside_an_optimizer) {
  MegatronFolder folder(qwen(2));
  const std::vector<DcpTensor> weights = folder.tensors();
  for (const char* prefix :
       {"model.", "language_model.", "a.module.b.", "module.language_model."}) {
    folder.tensors() = weights;
    for (DcpTensor& t : folder.tensors()) t.spec.name.insert(0, prefix);
    folder.tensors().push_back(dcp_tensor("vision.patch.weight", DType::bf16, {2, 2}, 1));
    for (const DcpTensor& t : weights) {
      folder.tensors().push_back(t);
      folder.tensors().back().spec.name.insert(0, "optimizer.state.exp_avg.");
    }
    const auto model = folder.open();
    ASSERT_TRUE(model) << prefix << ": " << model.error().message;
    EXPECT_THAT(model->left_out, ElementsAre("vision.patch.weight")) << prefix;
  }
  folder.tensors() = weights;
  for (DcpTensor& t : folder.tensors()) t.spec.name.insert(0, "module.");
  EXPECT_EQ(folder.error(), "") << "modules around modules do not count";
  folder.tensors() = weights;
  for (const DcpTensor& t : weights) {
    folder.tensors().push_back(t);
    folder.tensors().back().spec.name.insert(0, "ema.");
  }
  EXPECT_THAT(folder.error(),
              AllOf(HasSubstr("without a prefix and below 'ema.'"), HasSubstr("--prefix ema.")));
  EXPECT_TRUE(folder.open({.ignore = {"ema.*"}}));
}

TEST(MegatronCheckpoint, more_layers_than_the_config_says_are_refused) {
  for (const char* layout : kLayouts) {
    MegatronFolder folder(qwen(4), layout);
    folder.set_config(qwen(2));
    EXPECT_THAT(folder.error(), AnyOf(HasSubstr("has more layers or experts than the config says"),
                                      HasSubstr("is not part of the config's architecture")));
    EXPECT_TRUE(folder.open({.ignore = {"decoder.layers.*"}})) << "as asked for";
  }
}

TEST(MegatronCheckpoint, a_weight_that_the_config_lacks_is_refused_by_name) {
  struct Case {
    const char* name;
    Dims shape;
  };
  const Case cases[] = {{"decoder.layers.self_attention.linear_proj.bias", {2, 8}},
                        {"decoder.layers.self_attention.q_layernorm.weight", {2, 4}},
                        {"decoder.layers.mlp.experts.experts.linear_fc1.weight", {2, 4, 6, 8}},
                        {"mtp.layers.0.eh_proj.weight", {8, 16}},
                        {"output_layer.bias", {16}}};
  for (const Case& c : cases) {
    MegatronFolder folder(qwen(2));
    folder.tensors().push_back(dcp_tensor(c.name, DType::bf16, c.shape, 1));
    EXPECT_THAT(folder.error(),
                AllOf(HasSubstr(c.name), HasSubstr("is not part of the config's architecture"),
                      HasSubstr("--ignore")));
    const auto model = folder.open({.ignore = {c.name}});
    ASSERT_TRUE(model) << model.error().message;
    EXPECT_THAT(model->left_out, ElementsAre(c.name));
  }
}

TEST(MegatronCheckpoint, second_names_must_hold_the_same) {
  const std::string norm = "decoder.layers.input_layernorm.weight";
  MegatronFolder folder(qwen(2));
  folder.tensor(norm).rows = 1;
  EXPECT_EQ(folder.error(), "") << "cut otherwise than its second name";
  folder.tensor(norm).bytes.back() ^= 1;
  EXPECT_THAT(folder.error(), AllOf(HasSubstr("'" + norm + "'"), HasSubstr("differs from"),
                                    HasSubstr("linear_qkv.layer_norm_weight")));
}

TEST(MegatronCheckpoint, rows_that_are_stored_again_must_be_those_rows) {
  MegatronFolder folder(R"({"architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h",
    "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 4, "vocab_size": 16, "mamba_num_heads": 4,
    "mamba_head_dim": 4, "ssm_state_size": 6, "n_groups": 2, "conv_kernel": 4, "use_bias": false,
    "use_conv_bias": true, "hybrid_override_pattern": "M-", "torch_dtype": "bfloat16"})",
                        "torch_dist:layers=single");
  const std::string whole = "decoder.layers.0.mixer.conv1d_weight";
  std::string rows;
  for (const char* end : {".x", ".B", ".C"})
    rows += folder.tensor("decoder.layers.0.mixer.conv1d.weight" + std::string(end)).bytes;
  folder.tensor(whole).bytes = rows;
  rows.clear();
  for (const char* end : {".x", ".B", ".C"})
    rows += folder.tensor("decoder.layers.0.mixer.conv1d.bias" + std::string(end)).bytes;
  folder.tensor("decoder.layers.0.mixer.conv1d_bias").bytes = rows;
  EXPECT_EQ(folder.error(), "");
  folder.tensor(whole).bytes.back() ^= 1;
  EXPECT_THAT(folder.error(), AllOf(HasSubstr("'" + whole + "'"), HasSubstr("differs from"),
                                    HasSubstr("conv1d.weight.C")));
}

TEST(MegatronCheckpoint, the_head_of_a_tied_model_must_equal_its_embedding) {
  MegatronFolder folder(qwen(2));
  folder.set_config(qwen(2, true));
  EXPECT_EQ(folder.error(), "") << "all bytes here depend on the shape alone";
  folder.tensor("output_layer.weight").bytes[5] ^= 1;
  EXPECT_THAT(folder.error(), AllOf(HasSubstr("'output_layer.weight' is stored and differs from "
                                              "'embedding.word_embeddings.weight'"),
                                    HasSubstr("tie_word_embeddings is true")));
}

TEST(MegatronCheckpoint, a_missing_parameter_is_told_what_is_there) {
  MegatronFolder folder(qwen(2));
  folder.tensor("decoder.layers.self_attention.linear_proj.weight").spec.name =
      "decoder.layers.self_attention.linear_proj.to_wrap.weight";
  folder.tensors().push_back(
      dcp_tensor("decoder.layers.self_attention.linear_proj.adapter.linear_in.weight", DType::bf16,
                 {2, 2}, 1));
  EXPECT_THAT(folder.error(),
              AllOf(HasSubstr("tensor 'decoder.layers.0.self_attention.linear_proj.weight' is "
                              "missing; 'decoder.layers.self_attention.linear_proj.to_wrap.weight' "
                              "and"),
                    HasSubstr("LoRA adapter")));
}

}  // namespace
}  // namespace reshard
