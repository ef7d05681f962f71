// SPDX-License-Identifier: Apache-2.0
// Protects: a repository of the hub is found in the local cache, and nothing outside the cache is.
#include "reshard/io/hf/hub.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

#include "reshard/io/files/temp_dir_testutil.h"
#include "reshard/io/open_model.h"

namespace reshard::hf {
namespace {

using ::testing::HasSubstr;

/// Sets a variable of the environment, and gives it back its value at the end of the scope.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    ::setenv(name, value.c_str(), 1);
  }
  ~Variable() { old_ ? ::setenv(name_, old_->c_str(), 1) : ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> old_;
};

std::string error_of(const std::string& model) {
  const auto opened = open_model(model);
  return opened ? "no error" : opened.error().message;
}

TEST(Hub, an_id_has_two_parts) {
  for (const char* id : {"Qwen/Qwen3-8B", "deepseek-ai/DeepSeek-V3.1", "a/b", "_x/0.5B"})
    EXPECT_TRUE(is_hub_id(id)) << id;
  for (const char* path : {"Qwen3-8B", "/a/b", "a/b/c", "./a", "../a", "a/", "a/b.", "a/.b",
                           "a b/c", "a--b/c", "a/b..c", ""})
    EXPECT_FALSE(is_hub_id(path)) << path;
  EXPECT_FALSE(is_hub_id("a/" + std::string(97, 'b')));
}

TEST(Hub, the_cache_is_where_huggingface_hub_has_it) {
  const Variable cache("HF_HUB_CACHE", ""), home("HF_HOME", ""), xdg("XDG_CACHE_HOME", ""),
      user("HOME", "/home/u");
  EXPECT_EQ(hub_cache(), "/home/u/.cache/huggingface/hub");
  const Variable base("XDG_CACHE_HOME", "/c");
  EXPECT_EQ(hub_cache(), "/c/huggingface/hub");
  const Variable hf("HF_HOME", "/hf");
  EXPECT_EQ(hub_cache(), "/hf/hub");
  const Variable own("HF_HUB_CACHE", "/own");
  EXPECT_EQ(hub_cache(), "/own");
}

/// A cache with two revisions of a/b.
class HubCache : public ::testing::Test {
 protected:
  HubCache() : cache_("HF_HUB_CACHE", dir_.path()) {
    std::filesystem::create_directories(repository_ / "snapshots" / "1111");
    std::filesystem::create_directories(repository_ / "snapshots" / "2222");
    std::filesystem::create_directories(repository_ / "refs");
  }
  void write_main(const std::string& text) { dir_.write("models--a--b/refs/main", text); }

  const testing::TempDir dir_;
  const std::filesystem::path repository_ = dir_ / "models--a--b";
  const Variable cache_;
};

TEST_F(HubCache, the_snapshot_is_that_of_main) {
  write_main("2222\n");
  EXPECT_EQ(cached_snapshot("a/b"), dir_ / "models--a--b/snapshots/2222");
}

TEST_F(HubCache, without_main_it_is_the_only_one) {
  EXPECT_EQ(cached_snapshot("a/b"), std::nullopt) << "of two";
  std::filesystem::remove(repository_ / "snapshots" / "1111");
  EXPECT_EQ(cached_snapshot("a/b"), dir_ / "models--a--b/snapshots/2222");
  EXPECT_EQ(cached_snapshot("a/c"), std::nullopt);
}

TEST_F(HubCache, main_cannot_name_a_folder_elsewhere) {
  for (const char* main : {"../../../x", "..", ".", "", "/etc"}) {
    write_main(main);
    EXPECT_EQ(cached_snapshot("a/b"), std::nullopt) << main;
  }
}

TEST_F(HubCache, a_model_is_opened_by_its_id) {
  write_main("1111");
  dir_.write("models--a--b/snapshots/1111/config.json", R"({"architectures": ["LlamaForCausalLM"],
      "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
      "vocab_size": 8})");
  const auto model = open_model("a/b");
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_EQ(model->config->hidden_size, 8);
  EXPECT_FALSE(model->weights);
}

TEST_F(HubCache, an_id_that_is_not_there_must_be_downloaded) {
  EXPECT_EQ(
      error_of("meta-llama/Llama-3.1-8B-Instruct"),
      "model 'meta-llama/Llama-3.1-8B-Instruct': no such file or folder, and no repository of "
      "the Hugging Face hub in the cache " +
          dir_.path() +
          "; download it first (hf download meta-llama/Llama-3.1-8B-Instruct), nothing is "
          "downloaded here; the nearest example is llama-3.1-8b");
  EXPECT_THAT(error_of("Qwen/Qwen3-8B"), HasSubstr("the nearest example is qwen3-4b"));
  const auto opened = open_checkpoint("no/weights");
  ASSERT_FALSE(opened);
  EXPECT_THAT(opened.error().message, HasSubstr("nothing is downloaded here"));
  EXPECT_EQ(error_of("no/weights"), opened.error().message);
}

TEST(OpenModel, a_misspelt_example_is_told_its_name) {
  EXPECT_THAT(error_of("lama-3.1-8b"), HasSubstr("(did you mean 'llama-3.1-8b'?)"));
}

}  // namespace
}  // namespace reshard::hf
