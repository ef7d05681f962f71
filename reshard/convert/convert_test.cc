// SPDX-License-Identifier: Apache-2.0
// Protects: checkpoints at rest from C++: every layout and format on the way leaves the values,
// reports count what is there, differences are named, and a run that was stopped goes on.
#include "reshard/convert/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "reshard/convert/synthesize.h"
#include "reshard/convert/verify.h"
#include "reshard/io/files/temp_dir_testutil.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr const char* kLlama = R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
  "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "vocab_size": 128, "tie_word_embeddings": false,
  "torch_dtype": "bfloat16"})";
constexpr const char* kMoe =
    R"({"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
  "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
  "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 96, "tie_word_embeddings": false,
  "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
  "torch_dtype": "bfloat16"})";
constexpr const char* kPredictsMore =
    R"({"architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe",
  "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 96, "tie_word_embeddings": false,
  "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
  "n_shared_experts": 1, "first_k_dense_replace": 1, "attention_bias": true, "use_qk_norm": false,
  "num_nextn_predict_layers": 1, "torch_dtype": "bfloat16"})";
constexpr Index kLlamaTensors = 2 * 9 + 3;

class ConvertTest : public ::testing::Test {
 protected:
  /// A checkpoint of this config in a folder of that name.
  std::string checkpoint(const char* config, const std::string& name = "in",
                         std::optional<Index> layers = {}, std::uint64_t seed = 0) {
    const auto made = synthesize_checkpoint({.config = folder_.write(name + ".json", config),
                                             .output = folder_ / name,
                                             .layers = layers,
                                             .seed = seed,
                                             .threads = 2});
    EXPECT_TRUE(made) << made.error().message;
    return folder_ / name;
  }

  std::string convert(const std::string& from, const std::string& name, const std::string& to) {
    const auto made =
        convert_checkpoint({.input = from, .output = folder_ / name, .to = to, .threads = 2});
    EXPECT_TRUE(made) << made.error().message;
    return folder_ / name;
  }

  static VerifyReport compare(const std::string& a, const std::string& b) {
    auto report = verify_checkpoints({.a = a, .b = b, .threads = 2});
    EXPECT_TRUE(report) << report.error().message;
    return report ? *report : VerifyReport{};
  }

  /// Without gtest, which would print both.
  static bool same_file(const std::string& a, const std::string& b) {
    const std::string bytes = testing::read_file(a + "/model.safetensors");
    return !bytes.empty() && bytes == testing::read_file(b + "/model.safetensors");
  }

  std::string refused() const { return folder_ / "refused"; }

  static std::string error_of(const ConvertOptions& options) {
    const auto made = convert_checkpoint(options);
    return made ? "no error" : made.error().message;
  }

  testing::TempDir folder_;
};

TEST_F(ConvertTest, values_survive_every_family_of_layouts) {
  const std::string in = checkpoint(kMoe);
  std::string at = in;
  int step = 0;
  for (const char* to : {"megatron:tp=2,pp=2,ep=2,etp=1", "vllm:tp=4", "sglang:tp=2",
                         "fsdp:shard=3", "vllm:tp=2", "hf"}) {
    SCOPED_TRACE(to);
    at = convert(at, "step" + std::to_string(step++), to);
    const VerifyReport report = compare(in, at);
    EXPECT_TRUE(report.equal());
    EXPECT_GT(report.same, 0);
  }
  EXPECT_TRUE(same_file(at, in));
}

TEST_F(ConvertTest, copies_of_embedding_and_head_come_back_from_pieces) {
  const std::string in = checkpoint(kPredictsMore);
  ASSERT_THAT(testing::read_file(in + "/model.safetensors"),
              HasSubstr("model.layers.2.shared_head.head.weight"));
  const std::string pieces = convert(in, "pieces", "dcp:shard=3");
  EXPECT_TRUE(same_file(convert(pieces, "back", "hf"), in));
  const std::string files = convert(in, "files", "dcp:shard=2,format=safetensors");
  EXPECT_TRUE(same_file(convert(files, "again", "hf"), in));
  EXPECT_TRUE(compare(pieces, in).equal());
}

TEST_F(ConvertTest, the_file_of_one_rank_is_not_the_model) {
  const std::string ranks = convert(checkpoint(kLlama), "ranks", "megatron:tp=2");
  EXPECT_THAT(
      error_of({.input = ranks + "/rank-00000.safetensors", .output = refused(), .to = "hf"}),
      AllOf(HasSubstr("is what one of 2 ranks of the layout 'megatron:tp=2"),
            HasSubstr("name its folder")));
}

TEST_F(ConvertTest, a_report_counts_what_was_written) {
  const std::string in = checkpoint(kLlama);
  Index last = 0, total = 0;
  const auto report = convert_checkpoint({.input = in,
                                          .output = folder_ / "out",
                                          .to = "megatron:tp=2,dp=2",
                                          .sync = true,
                                          .threads = 2,
                                          .progress = [&](std::string_view, Index done, Index all) {
                                            last = done;
                                            total = all;
                                            return true;
                                          }});
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->ranks, 4);
  EXPECT_EQ(report->files, 2);  // ranks that hold the same share a file
  EXPECT_EQ(report->layout, "megatron:dp=2,tp=2");
  EXPECT_EQ(report->kept_files, 0);
  EXPECT_EQ(report->requantised, "");
  EXPECT_EQ(last, total);
  EXPECT_EQ(total, report->bytes);
  Index data = 0;
  for (const auto& entry : fs::directory_iterator(folder_ / "out"))
    if (entry.path().extension() == ".safetensors") data += static_cast<Index>(entry.file_size());
  EXPECT_GT(data, report->bytes);               // headers
  EXPECT_LT(data, report->bytes + (64 << 10));  // and nothing else
}

TEST_F(ConvertTest, a_large_model_is_cut_into_files_with_an_index) {
  const std::string in = checkpoint(kLlama);
  const auto report = convert_checkpoint({.input = in,
                                          .output = folder_ / "out",
                                          .to = "hf",
                                          .buffer_bytes = 1 << 20,
                                          .max_shard_bytes = 1'000'000,
                                          .threads = 1});
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_GT(report->files, 2);
  EXPECT_TRUE(fs::exists(folder_ / "out/model.safetensors.index.json"));
  EXPECT_EQ(compare(in, folder_ / "out").same, kLlamaTensors);
}

TEST_F(ConvertTest, a_cancelled_run_goes_on_where_it_was) {
  const std::string in = checkpoint(kLlama);
  Index calls = 0;
  ConvertOptions options{.input = in,
                         .output = folder_ / "out",
                         .to = "hf",
                         .buffer_bytes = 1 << 20,
                         .max_shard_bytes = 300'000,
                         .threads = 1,
                         .progress = [&](std::string_view, Index done, Index total) {
                           ++calls;
                           return done < total / 2;
                         }};
  const auto cancelled = convert_checkpoint(options);
  ASSERT_FALSE(cancelled);
  EXPECT_EQ(cancelled.error().code, Code::aborted);
  EXPECT_THAT(cancelled.error().message, StartsWith("cancelled"));
  EXPECT_GT(calls, 0);
  EXPECT_FALSE(fs::exists(folder_ / "out"));
  EXPECT_TRUE(fs::exists(folder_ / "out.partial"));
  options.progress = {};
  const auto resumed = convert_checkpoint(options);
  ASSERT_TRUE(resumed) << resumed.error().message;
  EXPECT_GT(resumed->kept_files, 0);
  EXPECT_GT(resumed->kept_bytes, 0);
  EXPECT_LT(resumed->kept_files, resumed->files);
  EXPECT_FALSE(fs::exists(folder_ / "out.partial"));
  EXPECT_TRUE(compare(in, folder_ / "out").equal());
}

TEST_F(ConvertTest, quantised_weights_move_between_layouts_as_they_are) {
  const std::string in = checkpoint(kLlama);
  for (const std::string format : {"fp8_channel", "mxfp8", "nvfp4"}) {
    SCOPED_TRACE(format);
    const std::string hf = convert(in, format, "hf:quant=" + format);
    const std::string ranks = convert(hf, format + "_ranks", "vllm:tp=2,quant=" + format);
    EXPECT_TRUE(compare(hf, ranks).equal());
    EXPECT_FALSE(compare(in, hf).equal());
  }
}

TEST_F(ConvertTest, another_format_says_that_precision_was_lost) {
  const std::string in = checkpoint(kLlama);
  const std::string channels = convert(in, "channels", "hf:quant=fp8_channel");
  const auto blocks = convert_checkpoint(
      {.input = channels, .output = folder_ / "blocks", .to = "hf:quant=fp8_block"});
  ASSERT_TRUE(blocks) << blocks.error().message;
  EXPECT_THAT(blocks->requantised, HasSubstr("fp8_"));
  const auto plain =
      convert_checkpoint({.input = channels, .output = folder_ / "plain", .to = "megatron:tp=2"});
  ASSERT_TRUE(plain) << plain.error().message;
}

TEST_F(ConvertTest, what_cannot_be_converted_is_said_before_anything_is_written) {
  const std::string in = checkpoint(kLlama);
  EXPECT_THAT(error_of({.input = folder_ / "absent", .output = refused(), .to = "hf"}),
              HasSubstr("absent"));
  EXPECT_THAT(error_of({.input = in, .output = refused(), .to = "tensorrt:tp=2"}),
              HasSubstr("tensorrt"));
  EXPECT_THAT(error_of({.input = in, .output = refused(), .to = "vllm:tp=3"}), HasSubstr("tp=3"));
  EXPECT_THAT(error_of({.input = in, .output = refused(), .to = "vllm:tp=2,offset=2"}),
              HasSubstr("offset"));
  EXPECT_THAT(error_of({.input = in, .output = refused(), .to = "hf", .from = "megatron:tp=2"}),
              AllOf(HasSubstr("is in layout"), HasSubstr("give that layout or none")));
  EXPECT_THAT(error_of({.input = in, .output = refused(), .to = "hf:quant=mxfp8,quant_grid=local"}),
              HasSubstr("leave quant_grid out"));
  EXPECT_THAT(error_of({.input = in, .output = in, .to = "hf"}), HasSubstr("is the input"));
  fs::create_directory(folder_ / "there");
  EXPECT_THAT(error_of({.input = in, .output = folder_ / "there", .to = "hf"}), HasSubstr("exist"));
  EXPECT_THAT(
      error_of({.input = in, .output = refused(), .to = "hf", .ignore = {"no.such.tensor"}}),
      HasSubstr("no.such.tensor"));
  EXPECT_FALSE(fs::exists(folder_ / "refused"));
  EXPECT_FALSE(fs::exists(folder_ / "refused.partial"));
}

TEST_F(ConvertTest, ranks_that_are_not_those_of_their_layout_are_refused) {
  const std::string out = convert(checkpoint(kLlama), "out", "megatron:tp=2");
  const std::string index = testing::read_file(out + "/reshard.json");
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = index;
    const auto at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    std::ofstream(out + "/reshard.json") << text.replace(at, from.size(), to);
    return error_of({.input = out, .output = refused(), .to = "hf"});
  };
  EXPECT_THAT(with("megatron:tp=2", "megatron:tp=4"), HasSubstr("has ranks"));
  EXPECT_THAT(with("megatron:tp=2", "megatron:pp=2"), HasSubstr("megatron:pp=2"));
  std::ofstream(out + "/reshard.json") << index;
  EXPECT_EQ(error_of({.input = out, .output = refused(), .to = "hf"}), "no error");
}

TEST_F(ConvertTest, a_changed_bit_is_found_and_named) {
  const std::string in = checkpoint(kLlama);
  const std::string out = convert(in, "out", "hf");
  const std::string file = out + "/model.safetensors";
  std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
  bytes.seekg(-1, std::ios::end);
  const char last = static_cast<char>(bytes.peek() ^ 1);
  bytes.seekp(-1, std::ios::end);
  bytes.put(last);
  bytes.close();
  const VerifyReport report = compare(in, out);
  EXPECT_FALSE(report.equal());
  ASSERT_EQ(report.differing.size(), 1U);
  EXPECT_NE(report.differing[0].a, report.differing[0].b);
  EXPECT_EQ(report.same, kLlamaTensors - 1);
  const auto ignored =
      verify_checkpoints({.a = in, .b = out, .ignore = {report.differing[0].name}});
  ASSERT_TRUE(ignored) << ignored.error().message;
  EXPECT_TRUE(ignored->equal());
  EXPECT_EQ(ignored->ignored.size(), 1U);
}

TEST_F(ConvertTest, what_one_checkpoint_has_alone_is_listed_on_its_side) {
  const std::string two = checkpoint(kLlama, "two"), one = checkpoint(kLlama, "one", 1);
  const VerifyReport report = compare(two, one);
  EXPECT_FALSE(report.equal());
  EXPECT_EQ(report.only_a.size(), 9U);
  EXPECT_TRUE(report.only_b.empty());
  EXPECT_EQ(compare(one, two).only_b.size(), 9U);
  EXPECT_EQ(report.a.layout, "hf");
  EXPECT_EQ(report.a.tensors, kLlamaTensors);
  EXPECT_EQ(report.b.tensors, kLlamaTensors - 9);
  EXPECT_GT(report.a.bytes, report.b.bytes);
}

TEST_F(ConvertTest, a_cancelled_comparison_is_an_error) {
  const std::string in = checkpoint(kLlama);
  const auto report = verify_checkpoints(
      {.a = in, .b = in, .progress = [](std::string_view, Index, Index) { return false; }});
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, Code::aborted);
}

TEST_F(ConvertTest, values_come_from_the_seed) {
  const std::string a = checkpoint(kLlama, "a"), again = checkpoint(kLlama, "again");
  const std::string other = checkpoint(kLlama, "other", {}, 7);
  EXPECT_TRUE(same_file(a, again));
  EXPECT_FALSE(compare(a, other).equal());
}

TEST_F(ConvertTest, a_checkpoint_is_no_config_to_synthesize_from) {
  const std::string in = checkpoint(kLlama);
  const auto made = synthesize_checkpoint({.config = in, .output = folder_ / "out"});
  ASSERT_FALSE(made);
  EXPECT_THAT(made.error().message, HasSubstr("is a checkpoint already"));
  const auto there = synthesize_checkpoint({.config = folder_ / "in.json", .output = in});
  ASSERT_FALSE(there);
  EXPECT_THAT(there.error().message, HasSubstr("exist"));
  EXPECT_FALSE(synthesize_checkpoint({.config = "no-such-model", .output = folder_ / "out"}));
}

TEST_F(ConvertTest, links_to_files_outside_are_reported_and_not_copied) {
  const std::string in = checkpoint(kLlama);
  std::ofstream(in + "/tokenizer.json") << "{}";
  fs::create_symlink(folder_.write("secret.json", "{}"), in + "/generation_config.json");
  const auto report =
      convert_checkpoint({.input = in, .output = folder_ / "out", .to = "megatron:tp=2"});
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_TRUE(fs::exists(folder_ / "out/tokenizer.json"));
  EXPECT_FALSE(fs::exists(folder_ / "out/generation_config.json"));
  ASSERT_EQ(report->files_left_out.size(), 1U);
  EXPECT_THAT(report->files_left_out[0].name, HasSubstr("generation_config.json"));
}

}  // namespace
}  // namespace reshard
