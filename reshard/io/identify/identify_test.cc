// SPDX-License-Identifier: Apache-2.0
// Protects: the model is found among all that a trainer saves; two candidates and leftovers that
// look like weights are refused by name, with the option that chooses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "reshard/io/dcp/dcp_folder_testutil.h"
#include "reshard/io/files/temp_dir_testutil.h"
#include "reshard/io/open_model.h"

namespace reshard {
namespace {

using ::testing::AllOf;
using testing::dcp_tensor;
using testing::DcpTensor;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string llama(bool tied) {
  return std::string(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
  "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2,
  "num_key_value_heads": 1, "vocab_size": 16, "torch_dtype": "bfloat16", "tie_word_embeddings": )") +
         (tied ? "true}" : "false}");
}

/// A folder with a config.
class TrainerFolder {
 public:
  explicit TrainerFolder(bool tied = false) {
    dir_.write("config.json", llama(tied));
    const auto model = open_model(dir_ / "config.json");
    EXPECT_TRUE(model) << model.error().message;
    wanted_ = model->tensors;
  }

  const ModelSpec& wanted() const { return *wanted_; }
  /// Adds all tensors of the model, `name` before and `end` behind their names.
  TrainerFolder& add(const std::string& prefix, unsigned seed, const std::string& end = "") {
    for (const CanonicalTensor& t : wanted_->tensors())
      tensors_.push_back(dcp_tensor(prefix + t.name + end, t.dtype, t.shape, seed++));
    return *this;
  }
  TrainerFolder& add_one(DcpTensor tensor) {
    tensors_.push_back(std::move(tensor));
    return *this;
  }
  std::vector<DcpTensor>& tensors() { return tensors_; }
  DcpTensor& tensor(const std::string& name) {
    for (DcpTensor& t : tensors_)
      if (t.spec.name == name) return t;
    ADD_FAILURE() << name;
    return tensors_.front();
  }

  Result<Model> open(const ModelOptions& options = {}) {
    testing::write_dcp_folder(dir_.path(), tensors_, {"count", "optimizer.param_groups"});
    return open_model(dir_.path(), options);
  }
  /// "" if it opens.
  std::string error(const ModelOptions& options = {}) {
    const auto model = open(options);
    return model ? "" : model.error().message;
  }
  /// Opens it and checks that its tensors are those of add(prefix, seed).
  Model expect_model(unsigned seed, const ModelOptions& options = {}) {
    auto model = open(options);
    EXPECT_TRUE(model) << model.error().message;
    if (!model) return {};
    EXPECT_TRUE(model->config.has_value()) << model->no_config;
    for (const CanonicalTensor& t : wanted_->tensors()) {
      const auto* stored = find_tensor(model->weights->tensors(Rank(0)), t.name);
      if (stored == nullptr) {
        ADD_FAILURE() << t.name;
        continue;
      }
      const auto bytes = model->weights->data(*stored);
      EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()),
                dcp_tensor("", t.dtype, t.shape, seed).bytes)
          << t.name;
      ++seed;
    }
    return *std::move(model);
  }

 private:
  testing::TempDir dir_;
  std::shared_ptr<const ModelSpec> wanted_;
  std::vector<DcpTensor> tensors_;
};

TEST(Identify, the_weights_are_found_among_what_trainers_save) {
  struct Case {
    const char *framework, *weights, *state, *end;
  };
  const Case cases[] = {{"torchtitan", "", "optimizer.state.", ".exp_avg"},
                        {"accelerate", "model.", "optimizer.state.", ".exp_avg_sq"},
                        {"Lightning", "model.model.", "optimizer_0.state.model.model.", ".exp_avg"},
                        {"Composer", "state.model.", "state.optimizers.AdamW.state.", ".exp_avg"},
                        {"torch", "app.model.", "app.optim.state.model.", ".momentum_buffer"},
                        {"by state", "model.", "exp_avg_sq.", ""},
                        {"Megatron", "model.", "optimizer.state.fp32_param.", ""},
                        {"gradients", "model.", "grads.", ""},
                        {"gradients beside", "model.", "model.", ".grad"}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.framework);
    TrainerFolder folder;
    folder.add(c.state, 500, c.end).add(c.weights, 7);
    folder.add_one(dcp_tensor("optimizer.state.x.step", DType::f32, {}, 1));
    folder.add_one(dcp_tensor("step", DType::i64, {1}, 1));
    EXPECT_THAT(folder.expect_model(7).left_out, IsEmpty());
  }
}

TEST(Identify, two_models_are_refused_by_name_and_a_prefix_chooses) {
  TrainerFolder folder;
  folder.add("ema.", 500).add("model.", 7);
  EXPECT_THAT(folder.error(),
              HasSubstr("holds more than one model: below 'ema.' and below 'model.'; choose with "
                        "--prefix ema. or --prefix model."));
  EXPECT_THAT(folder.expect_model(7, {.prefix = "model."}).left_out,
              ::testing::Contains("ema.lm_head.weight"));
  folder.expect_model(500, {.prefix = "ema."});
  folder.expect_model(7, {.ignore = {"ema.*"}});
  EXPECT_THAT(folder.error({.prefix = "emo."}), HasSubstr("no tensor's name begins with 'emo.'"));
  // Where a config is not required, nothing is chosen either.
  const auto loose = folder.open({.exact = false});
  ASSERT_TRUE(loose) << loose.error().message;
  EXPECT_FALSE(loose->config.has_value());
  EXPECT_THAT(loose->no_config, HasSubstr("holds more than one model"));
  EXPECT_EQ(loose->tensors->size(), 2 * folder.wanted().size());
}

TEST(Identify, a_second_model_beside_names_without_a_prefix_can_be_ignored) {
  TrainerFolder folder;
  folder.add("", 7).add("ema.", 500);
  EXPECT_THAT(folder.error(), AllOf(HasSubstr("below 'ema.'"), HasSubstr("--prefix ema."),
                                    HasSubstr("--ignore 'ema.*'")));
  folder.expect_model(7, {.ignore = {"ema.*"}});
  folder.expect_model(500, {.prefix = "ema."});
}

TEST(Identify, part_of_a_second_model_is_refused_and_other_modules_are_named) {
  TrainerFolder folder;
  folder.add("model.", 7);
  folder.add_one(dcp_tensor("vision.layers.0.self_attn.q_proj.weight", DType::bf16, {2, 2}, 1));
  EXPECT_THAT(folder.expect_model(7).left_out,
              ElementsAre("vision.layers.0.self_attn.q_proj.weight"));
  folder.add_one(dcp_tensor("ema.model.layers.0.self_attn.q_proj.weight", DType::bf16, {8, 8}, 1));
  EXPECT_THAT(folder.error(), AllOf(HasSubstr("'ema.model.layers.0.self_attn.q_proj.weight'"),
                                    HasSubstr("--prefix model."), HasSubstr("--ignore")));
  folder.expect_model(7, {.ignore = {"ema.*"}});
  folder.expect_model(7, {.prefix = "model."});
}

TEST(Identify, a_tensor_of_the_model_that_its_config_lacks_is_refused) {
  TrainerFolder folder;
  folder.add("model.", 7).add_one(dcp_tensor("model.value_head.weight", DType::bf16, {1, 8}, 1));
  EXPECT_THAT(folder.error(), HasSubstr("tensor 'value_head.weight' of shape [1, 8] is not part"));
  EXPECT_THAT(folder.expect_model(7, {.ignore = {"value_head.*"}}).left_out,
              ElementsAre("value_head.weight"));
}

TEST(Identify, names_of_wrappers_do_not_count_wherever_they_stand) {
  const std::map<std::string, std::string> wrapped = {
      {"layers.0.", "layers.0._orig_mod."},
      {"layers.1.", "layers.1._checkpoint_wrapped_module._orig_mod."},
      {"model.embed", "_fsdp_wrapped_module.model.embed"},
      {"lm_head", "module.lm_head"}};
  TrainerFolder folder;
  folder.add("model.", 7);
  for (DcpTensor& t : folder.tensors())
    for (const auto& [from, to] : wrapped)
      if (const auto at = t.spec.name.find(from); at != std::string::npos)
        t.spec.name.replace(at, from.size(), to);
  const Model model = folder.expect_model(7);
  EXPECT_THAT(model.left_out, IsEmpty());
  folder.expect_model(7, {.prefix = "model."});
  const auto as_stored = folder.open({.exact = false, .prefix = ""});
  ASSERT_TRUE(as_stored);
  EXPECT_TRUE(as_stored->tensors->find("model.module.lm_head.weight")) << "names as they are";
}

TEST(Identify, two_names_that_are_one_without_wrappers_must_hold_the_same) {
  TrainerFolder folder;
  folder.add("model.", 7);
  DcpTensor twice = folder.tensor("model.model.norm.weight");
  twice.spec.name = "model._orig_mod.model.norm.weight";
  folder.add_one(twice);
  EXPECT_THAT(folder.expect_model(7).left_out, IsEmpty());
  folder.tensor(twice.spec.name).bytes[3] ^= 1;
  EXPECT_THAT(folder.error(),
              AllOf(HasSubstr("\"model._orig_mod.model.norm.weight\""),
                    HasSubstr("are both 'model.norm.weight'"), HasSubstr("differ")));
  folder.expect_model(7, {.ignore = {"*_orig_mod*"}});
}

TEST(Identify, a_tied_head_must_equal_the_embedding_however_both_are_cut) {
  TrainerFolder folder(true);
  folder.add("model.", 7);
  folder.tensor("model.model.embed_tokens.weight").rows = 5;
  DcpTensor head = folder.tensor("model.model.embed_tokens.weight");
  head.spec.name = "model.lm_head.weight";
  head.rows = 3;
  folder.add_one(head);
  const auto model = folder.open();
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_FALSE(model->tensors->find("lm_head.weight"));
  EXPECT_THAT(model->left_out, IsEmpty());
  folder.tensor("model.lm_head.weight").bytes.back() ^= 1;
  EXPECT_THAT(folder.error(), AllOf(HasSubstr("'lm_head.weight' is stored and differs from "
                                              "'model.embed_tokens.weight'"),
                                    HasSubstr("tie_word_embeddings is true")));
}

TEST(Identify, what_is_there_is_named_where_a_tensor_is_missing) {
  TrainerFolder folder;
  folder.add("model.", 7);
  folder.tensor("model.model.layers.0.self_attn.q_proj.weight").spec.name =
      "model.model.layers.0.self_attn.query.weight";
  EXPECT_THAT(folder.error(),
              AllOf(HasSubstr("'model.layers.0.self_attn.q_proj.weight' is missing"),
                    HasSubstr("'model.layers.0.self_attn.query.weight' is there")));
  TrainerFolder adapter;
  adapter.add("base_model.model.", 7);
  DcpTensor& query = adapter.tensor("base_model.model.model.layers.0.self_attn.q_proj.weight");
  query.spec.name = "base_model.model.model.layers.0.self_attn.q_proj.base_layer.weight";
  adapter.add_one(
      dcp_tensor("base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight",
                 DType::bf16, {4, 8}, 1));
  EXPECT_THAT(adapter.error(), HasSubstr("of a LoRA adapter that is not merged"));
}

TEST(Identify, the_state_of_an_optimizer_alone_is_no_model) {
  TrainerFolder folder;
  folder.add("optimizer.state.exp_avg.", 7);
  EXPECT_THAT(folder.error(),
              AllOf(HasSubstr("holds no weights"),
                    HasSubstr("\"optimizer.state.exp_avg.model.embed_tokens.weight\"")));
}

}  // namespace
}  // namespace reshard
