// SPDX-License-Identifier: Apache-2.0
// Protects: a traced layout is what the process with the engine leaves, and whatever goes wrong
// there is one line here. The process is a script that stands in for Python with an engine;
// python/tests/test_traced_notation.py has the real one.
#include "reshard/io/traced/traced_layout.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "reshard/io/files/temp_dir_testutil.h"
#include "reshard/io/layout_file.h"
#include "reshard/io/make_layout.h"
#include "reshard/io/traced/child_process.h"

namespace reshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::TempDir;

/// The smallest checkpoint of a class that no family has.
constexpr const char* kHeader = R"({"a":{"dtype":"BF16","shape":[4,2],"data_offsets":[0,16]},)"
                                R"("b":{"dtype":"F32","shape":[3],"data_offsets":[16,28]}})";
constexpr const char* kConfig = R"({"architectures":["NewForCausalLM"],"model_type":"new"})";
constexpr const char* kLayout = R"({"format":"reshard layout","version":1,"name":"found",
"ranks":"0-1","tensors":[{"name":"a","dtype":"BF16","shape":[4,2]},
{"name":"b","dtype":"F32","shape":[3]}],"omitted":["b"],
"local_tensors":[{"name":"x","ranks":"0","dtype":"BF16","shape":[2,2],"parts":["0[0,2)x[0,2)@0,0"]},
{"name":"x","ranks":"1","dtype":"BF16","shape":[2,2],"parts":["0[2,4)x[0,2)@0,0"]}]})";

class TracedLayouts : public ::testing::Test {
 protected:
  void SetUp() override {
    files_.write("model.safetensors", testing::safetensors_file(kHeader, 28));
    files_.write("config.json", kConfig);
    files_.write("layout.json", kLayout);
    model_ = *open_model(files_.path());
  }
  void TearDown() override {
    ::unsetenv("RESHARD_PYTHON");
    ::unsetenv("RESHARD_TRACING_SECONDS");
  }

  /// The process. It is called as `-P -m reshard._trace ENGINE MODEL FOLDER key=value ...`; the
  /// script finds ENGINE in $3.
  void python_is(const std::string& script) const {
    const auto path = files_.write("python", "#!/bin/sh\nset -e\nshift\n" + script);
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    ::setenv("RESHARD_PYTHON", path.c_str(), 1);
  }
  std::string leaves(const std::string& notation) const {
    return fmt::format("cp {} $5/explicit.json\nprintf '{}' > $5/notation\n",
                       files_ / "layout.json", notation);
  }
  std::string error_of(const std::string& text) const {
    const auto side = make_side(text, model_);
    return side ? "no error" : side.error().message;
  }

  TempDir files_;
  Model model_;
};

TEST_F(TracedLayouts, are_what_the_process_leaves) {
  python_is(
      fmt::format("echo \"$@\" > {}\ncp $5/weights.json {}\n", files_ / "said", files_ / "given") +
      leaves("explicit:explicit.json"));
  const auto side = make_side("traced:vllm,tp=2,offset=3,max_model_len=8", model_);
  ASSERT_TRUE(side) << side.error().message;
  EXPECT_EQ(side->values->name(), "traced:vllm,max_model_len=8,offset=3,tp=2");
  EXPECT_EQ(side->values->ranks().members(), (std::vector{Rank(3), Rank(4)}));
  const std::string said = testing::read_file(files_ / "said");
  EXPECT_THAT(said, HasSubstr("-m reshard._trace vllm " + files_.path() + " "));
  EXPECT_THAT(said, HasSubstr(" max_model_len=8 tp=2\n")) << "the offset is not the engine's";
  EXPECT_EQ(testing::read_file(files_ / "given"),
            "{\"a\": [[4, 2], \"BF16\"],\n\"b\": [[3], \"F32\"]}\n");
  ASSERT_NE(side->traced, nullptr);
  EXPECT_EQ(to_string(side->traced->notation), "explicit:explicit.json,offset=3");
  EXPECT_EQ(side->traced->text, kLayout);
}

TEST_F(TracedLayouts, read_a_config_of_another_name) {
  files_.write("new.json", kConfig);
  model_.config_path = files_ / "new.json";
  python_is(fmt::format("cp $4/config.json {}\n", files_ / "read") +
            leaves("explicit:explicit.json"));
  ASSERT_TRUE(make_side("traced:transformers", model_));
  EXPECT_EQ(testing::read_file(files_ / "read"), kConfig);
}

TEST_F(TracedLayouts, leave_no_folder_behind) {
  python_is(fmt::format("echo $5 > {}\n", files_ / "folder") + leaves("explicit:explicit.json"));
  ASSERT_TRUE(make_side("traced:vllm", model_));
  std::string folder = testing::read_file(files_ / "folder");
  folder.pop_back();
  EXPECT_FALSE(std::filesystem::exists(folder)) << folder;
}

TEST_F(TracedLayouts, pass_the_engines_refusal_on) {
  python_is("printf 'invalid_argument\\ntp=3: heads do not divide' > $5/error\nexit 1\n");
  const auto side = make_side("traced:vllm,tp=3", model_);
  ASSERT_FALSE(side);
  EXPECT_EQ(side.error().code, Code::invalid_argument);
  EXPECT_EQ(side.error().message, "layout 'traced:vllm,tp=3': tp=3: heads do not divide");
}

TEST_F(TracedLayouts, say_how_a_process_failed) {
  python_is("echo '/usr/bin/python3: No module named reshard' >&2\nexit 1\n");
  EXPECT_THAT(error_of("traced:vllm"),
              AllOf(HasSubstr("has no package reshard"), HasSubstr("RESHARD_PYTHON")));
  python_is("echo first >&2\necho last >&2\nexit 7\n");
  EXPECT_THAT(error_of("traced:vllm"), HasSubstr("exit code 7: last"));
  python_is("kill -9 $$\n");
  EXPECT_THAT(error_of("traced:vllm"), HasSubstr("exit code 137"));
  ::setenv("RESHARD_PYTHON", "/nowhere/python", 1);
  EXPECT_THAT(error_of("traced:vllm"), HasSubstr("cannot start '/nowhere/python': No such file"));
}

TEST_F(TracedLayouts, end_a_process_that_takes_too_long) {
  // It waits for a line of its standard input, which never comes.
  python_is("read line\n");
  ::setenv("RESHARD_TRACING_SECONDS", "0.05", 1);
  const auto side = make_side("traced:vllm", model_);
  ASSERT_FALSE(side);
  EXPECT_EQ(side.error().code, Code::deadline);
  ::setenv("RESHARD_TRACING_SECONDS", "soon", 1);
  EXPECT_THAT(error_of("traced:vllm"), HasSubstr("RESHARD_TRACING_SECONDS=soon"));
}

TEST_F(TracedLayouts, believe_no_process) {
  python_is("exit 0\n");
  EXPECT_THAT(error_of("traced:vllm"), HasSubstr("notation"));
  python_is(leaves("megatron:tp=2"));
  EXPECT_THAT(error_of("traced:vllm"), HasSubstr("is no notation of a traced layout"));
  python_is(leaves("explicit:../elsewhere.json"));
  EXPECT_THAT(error_of("traced:vllm"), HasSubstr("is no notation of a traced layout"));
  python_is(leaves("explicit:explicit.json") + "echo nonsense > $5/explicit.json\n");
  EXPECT_THAT(error_of("traced:vllm"), HasSubstr("line 1, column 2"));
}

TEST_F(TracedLayouts, name_a_known_engine) {
  EXPECT_THAT(error_of("traced"), HasSubstr("names its engine first: traced:vllm,tp=4"));
  EXPECT_THAT(error_of("traced:tp=4"), HasSubstr("names its engine first"));
  EXPECT_THAT(error_of("traced:vlm"), HasSubstr("did you mean 'vllm'?"));
  model_.config_path.clear();
  EXPECT_THAT(error_of("traced:vllm"), HasSubstr("has no config.json"));
}

TEST_F(TracedLayouts, are_what_a_refusal_of_the_family_names) {
  EXPECT_THAT(error_of("vllm:tp=4,ep=4,offset=8"),
              HasSubstr("traced:vllm,ep=4,offset=8,tp=4 asks the engine's own loader"));
  EXPECT_THAT(error_of("megatron:tp=4"), ::testing::Not(HasSubstr("traced")));
}

TEST(ChildProcess, keeps_the_end_of_what_it_says) {
  const auto end = traced::run_child(
      {"sh", "-c", "i=0; while [ $i -lt 2000 ]; do echo line $i >&2; i=$((i+1)); done; exit 3"},
      60);
  ASSERT_TRUE(end) << end.error().message;
  EXPECT_EQ(end->exit_code, 3);
  EXPECT_FALSE(end->timed_out);
  EXPECT_LE(end->said.size(), 2048u);
  EXPECT_THAT(end->said, ::testing::EndsWith("line 1999"));
}

}  // namespace
}  // namespace reshard
