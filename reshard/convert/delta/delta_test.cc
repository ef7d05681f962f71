// SPDX-License-Identifier: Apache-2.0
// Protects: the later of two checkpoints comes back byte for byte, every file of it, from the
// earlier one and their delta, or from an anchor and a chain; the same checkpoints give the same
// delta; and nothing else is ever written under the output's name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "reshard/convert/delta.h"
#include "reshard/io/checkpoint/safetensors_writer.h"
#include "reshard/io/delta/delta_file.h"
#include "reshard/io/files/temp_dir_testutil.h"
#include "reshard/transform/delta/delta_code.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::read_file;
using testing::TempDir;

/// File name -> content, of a folder; or "" -> content, of a file.
using Content = std::map<std::string, std::string>;

Content content_of(const std::string& path) {
  Content content;
  if (!fs::is_directory(path)) return {{"", read_file(path)}};
  for (const auto& entry : fs::recursive_directory_iterator(path))
    if (entry.is_regular_file())
      content[entry.path().lexically_relative(path).string()] = read_file(entry.path().string());
  return content;
}

void write_bytes(const std::string& path, const std::string& bytes) {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

struct Tensor {
  TensorSpec spec;
  std::string bytes;
};

std::string random_text(std::size_t size, std::mt19937_64& random) {
  std::string text(size, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

Tensor make_tensor(const std::string& name, DType dtype, Dims shape, std::mt19937_64& random) {
  const auto bytes = static_cast<std::size_t>(*stored_bytes(dtype, shape));
  return {{name, dtype, shape}, random_text(bytes, random)};
}

void write_file(const std::string& path, const std::vector<Tensor>& tensors) {
  fs::create_directories(fs::path(path).parent_path());
  fs::remove(path);
  std::vector<TensorBytes> all;
  for (const Tensor& t : tensors) all.push_back({t.spec, std::as_bytes(std::span(t.bytes))});
  const auto written = write_safetensors(path, all, {{"format", "pt"}});
  ASSERT_TRUE(written.has_value()) << written.error().message;
}

/// Changes this share of the bytes, and one at least of a share above zero.
void change(std::string& bytes, double share, std::mt19937_64& random) {
  const auto changes = static_cast<std::size_t>(static_cast<double>(bytes.size()) * share);
  for (std::size_t i = 0; i < std::max<std::size_t>(changes, share > 0 ? 1 : 0); ++i)
    if (!bytes.empty()) bytes[random() % bytes.size()] ^= static_cast<char>(1 + random() % 255);
}

Result<DeltaReport> make(const std::string& base, const std::string& next,
                         const std::string& output, const std::string& after = "",
                         int threads = 2) {
  return make_delta(
      {.base = base, .next = next, .output = output, .after = after, .threads = threads});
}

Result<ApplyDeltasReport> apply(const std::string& base, std::vector<std::string> deltas,
                                const std::string& output) {
  return apply_deltas({.base = base, .deltas = std::move(deltas), .output = output, .threads = 2});
}

/// The message of an error; "" if there is none.
template <class T>
std::string why(const Result<T>& result) {
  return result ? "" : result.error().message;
}

DType any_dtype() { return static_cast<DType>(*rc::gen::inRange(0, static_cast<int>(DType::i4))); }

/// Tensors of any dtypes whose sizes are from nothing to a little more than a block.
std::vector<Tensor> any_tensors(std::mt19937_64& random) {
  std::vector<Tensor> tensors;
  const int count = *rc::gen::inRange(0, 5);
  for (int i = 0; i < count; ++i) {
    const Index rows = *rc::gen::weightedElement<Index>({{8, 3}, {1, 0}, {1, 40'000}});
    tensors.push_back(
        make_tensor("t" + std::to_string(i), any_dtype(), Dims{rows, Index{8}}, random));
  }
  return tensors;
}

RC_GTEST_PROP(Delta, makes_the_later_folder_of_the_earlier_one, ()) {
  const TempDir d;
  std::mt19937_64 random(*rc::gen::arbitrary<std::uint64_t>());
  auto tensors = any_tensors(random);
  write_file(d / "base/model.safetensors", tensors);
  write_bytes(d / "base/config.json", random_text(100, random));
  write_bytes(d / "base/original/params.txt", "old");
  for (Tensor& t : tensors) change(t.bytes, *rc::gen::element(0.0, 0.001, 0.1, 1.0), random);
  if (!tensors.empty() && *rc::gen::arbitrary<bool>()) tensors.erase(tensors.begin());
  if (*rc::gen::arbitrary<bool>())
    tensors.push_back(make_tensor("new", any_dtype(), Dims{Index{16}}, random));
  write_file(d / "next/model.safetensors", tensors);
  write_bytes(d / "next/config.json", random_text(*rc::gen::element(0U, 100U, 101U), random));
  if (*rc::gen::arbitrary<bool>()) write_bytes(d / "next/added/empty", "");

  RC_ASSERT(why(make(d / "base", d / "next", d / "delta")) == "");
  RC_ASSERT(why(make(d / "base", d / "next", d / "again", "", 1)) == "");
  RC_ASSERT(read_file(d / "delta") == read_file(d / "again"));
  RC_ASSERT(why(apply(d / "base", {d / "delta"}, d / "out")) == "");
  RC_ASSERT(content_of(d / "out") == content_of(d / "next"));
}

RC_GTEST_PROP(Delta, of_a_chain_gives_each_of_its_checkpoints, ()) {
  const TempDir d;
  std::mt19937_64 random(*rc::gen::arbitrary<std::uint64_t>());
  std::vector<Tensor> tensors = any_tensors(random);
  write_file(d / "0", tensors);
  fs::rename(d / "0", d / "0.safetensors");
  const int steps = *rc::gen::inRange(1, 6);
  std::vector<std::string> deltas;
  std::string last = d / "0.safetensors";
  for (int step = 1; step <= steps; ++step) {
    for (Tensor& t : tensors) change(t.bytes, *rc::gen::element(0.0, 0.01), random);
    if (!tensors.empty() && random() % 4 == 0) tensors.pop_back();
    if (random() % 4 == 0)
      tensors.push_back(make_tensor("s" + std::to_string(step), DType::f8_e4m3, Dims{5}, random));
    const std::string next = d / (std::to_string(step) + ".safetensors");
    write_file(next, tensors);
    const std::string delta = d / ("delta" + std::to_string(step));
    const auto made = make(last, next, delta, step == 1 ? "" : deltas.back());
    RC_ASSERT(why(made) == "");
    RC_ASSERT(made->step == step);
    deltas.push_back(delta);
    last = next;
    const std::string out = d / ("out" + std::to_string(step));
    RC_ASSERT(why(apply(d / "0.safetensors", deltas, out)) == "");
    RC_ASSERT(read_file(out) == read_file(next));
  }
}

/// A base of two tensors in a folder with a config, a later version of it, and their delta.
class DeltaFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"a.weight", "b.weight"})
      tensors_.push_back(make_tensor(name, DType::bf16, Dims{Index{600'000}}, random_));
    write_file(d_ / "base/model.safetensors", tensors_);
    write_bytes(d_ / "base/config.json", "{}");
    change(tensors_[1].bytes, 0.001, random_);
    write_file(d_ / "next/model.safetensors", tensors_);
    write_bytes(d_ / "next/config.json", "{}");
    ASSERT_EQ(why(make(d_ / "base", d_ / "next", d_ / "delta")), "");
  }

  /// Expects that nothing was written, and returns the message.
  std::string refused(const std::string& base, const std::vector<std::string>& deltas) {
    const auto applied = apply(base, deltas, d_ / "out");
    EXPECT_FALSE(applied.has_value());
    EXPECT_FALSE(fs::exists(d_ / "out"));
    EXPECT_FALSE(fs::exists(d_ / "out.partial"));
    return why(applied);
  }

  TempDir d_;
  std::mt19937_64 random_{1};
  std::vector<Tensor> tensors_;
};

TEST_F(DeltaFiles, say_what_changed_and_how_much) {
  const auto report = inspect_delta(d_ / "delta");
  ASSERT_EQ(why(report), "");
  EXPECT_EQ(report->step, 1);
  EXPECT_EQ(report->anchor, report->base);
  EXPECT_NE(report->result, report->base);
  EXPECT_EQ(report->unchanged, 3) << "the header, a.weight and config.json";
  ASSERT_EQ(report->changes.size(), 1U);
  EXPECT_EQ(report->changes[0].name, "b.weight");
  EXPECT_EQ(report->changes[0].state, "changed");
  EXPECT_EQ(report->changes[0].bytes, 1'200'000);
  EXPECT_EQ(report->delta_bytes, static_cast<Index>(fs::file_size(d_ / "delta")));
  EXPECT_LT(report->share(), 0.01);
  const auto read = SafetensorsFile::open(d_ / "delta");
  ASSERT_EQ(why(read), "");
  EXPECT_EQ(read->metadata().at("format"), "reshard.delta/1");
  EXPECT_EQ(read->metadata().at("result"), report->result);
  EXPECT_NE(read->find("model.safetensors:b.weight"), nullptr);
}

TEST_F(DeltaFiles, of_values_that_all_change_are_hardly_larger_than_the_checkpoint) {
  for (Tensor& t : tensors_) t.bytes = random_text(t.bytes.size(), random_);
  write_file(d_ / "other/model.safetensors", tensors_);
  const auto report = make(d_ / "base", d_ / "other", d_ / "large");
  ASSERT_EQ(why(report), "");
  EXPECT_GT(report->share(), 1.0);
  EXPECT_LT(report->share(), 1.001);
  ASSERT_EQ(why(apply(d_ / "base", {d_ / "large"}, d_ / "out")), "");
  EXPECT_EQ(content_of(d_ / "out"), content_of(d_ / "other"));
}

TEST_F(DeltaFiles, are_refused_on_another_base_by_the_tensor_that_differs) {
  EXPECT_THAT(refused(d_ / "next", {d_ / "delta"}),
              AllOf(HasSubstr("next: is not the checkpoint that"), HasSubstr("delta changes"),
                    HasSubstr("tensor b.weight of model.safetensors differs")));
  write_bytes(d_ / "base/config.json", "[]");
  EXPECT_THAT(refused(d_ / "base", {d_ / "delta"}), HasSubstr(": config.json differs"));
  fs::remove(d_ / "base/config.json");
  EXPECT_THAT(refused(d_ / "base", {d_ / "delta"}), HasSubstr(": config.json is missing"));
  write_bytes(d_ / "base/config.json", "{}");
  tensors_[0] = make_tensor("a.weight", DType::bf16, Dims{Index{5}}, random_);
  write_file(d_ / "base/model.safetensors", tensors_);
  EXPECT_THAT(refused(d_ / "base", {d_ / "delta"}),
              HasSubstr("a.weight of model.safetensors has 10 bytes, must have 1200000"));
  EXPECT_THAT(refused(d_ / "base/model.safetensors", {d_ / "delta"}), HasSubstr("is a file, but"));
}

TEST_F(DeltaFiles, that_are_damaged_are_refused_by_the_tensor) {
  std::string bytes = read_file(d_ / "delta");
  bytes.back() ^= 1;
  write_bytes(d_ / "damaged", bytes);
  EXPECT_THAT(refused(d_ / "base", {d_ / "damaged"}),
              AllOf(HasSubstr("damaged: "), HasSubstr("tensor b.weight of model.safetensors"),
                    HasSubstr("differs from its hash")));
}

TEST_F(DeltaFiles, of_a_chain_are_refused_out_of_order) {
  change(tensors_[0].bytes, 0.01, random_);
  write_file(d_ / "third/model.safetensors", tensors_);
  ASSERT_EQ(why(make(d_ / "next", d_ / "third", d_ / "delta2", d_ / "delta")), "");
  EXPECT_THAT(refused(d_ / "base", {d_ / "delta2", d_ / "delta"}),
              HasSubstr("delta: begins at checkpoint"));
  EXPECT_THAT(refused(d_ / "base", {d_ / "delta2"}), HasSubstr("tensor b.weight"));
  EXPECT_THAT(refused(d_ / "base", {}), HasSubstr("no deltas"));
  EXPECT_THAT(why(make(d_ / "base", d_ / "third", d_ / "x", d_ / "delta")),
              AllOf(HasSubstr("base: is not the checkpoint at which"),
                    HasSubstr("tensor b.weight of model.safetensors differs")));
  EXPECT_FALSE(fs::exists(d_ / "x"));
  // Of another chain: it begins at the right checkpoint, but that is its own anchor.
  ASSERT_EQ(why(make(d_ / "next", d_ / "third", d_ / "other")), "");
  EXPECT_THAT(refused(d_ / "base", {d_ / "delta", d_ / "other"}),
              HasSubstr("is step 1 of the chain from"));
  ASSERT_EQ(why(apply(d_ / "base", {d_ / "delta", d_ / "delta2"}, d_ / "out")), "");
  EXPECT_EQ(content_of(d_ / "out"), content_of(d_ / "third"));
}

TEST_F(DeltaFiles, do_not_replace_what_exists) {
  EXPECT_THAT(why(make(d_ / "base", d_ / "next", d_ / "delta")), HasSubstr("delta: exists"));
  EXPECT_THAT(why(apply(d_ / "base", {d_ / "delta"}, d_ / "next")), HasSubstr("next: exists"));
  EXPECT_THAT(why(make(d_ / "base", d_ / "next", d_ / "no/delta")), HasSubstr("parent folder"));
}

TEST_F(DeltaFiles, appear_complete_or_not_at_all) {
  const auto cancel = [](std::string_view, Index, Index) { return false; };
  const auto made = make_delta({.base = d_ / "base",
                                .next = d_ / "next",
                                .output = d_ / "cancelled",
                                .threads = 1,
                                .progress = cancel});
  EXPECT_THAT(why(made), HasSubstr("cancelled"));
  const auto applied = apply_deltas({.base = d_ / "base",
                                     .deltas = {d_ / "delta"},
                                     .output = d_ / "out",
                                     .threads = 1,
                                     .progress = cancel});
  EXPECT_THAT(why(applied), HasSubstr("cancelled"));
  EXPECT_THAT(d_.names(), ElementsAre("base", "delta", "next"));
  // A killed writer's unfinished file is replaced.
  write_bytes(d_ / "again.partial", "unfinished");
  ASSERT_EQ(why(make(d_ / "base", d_ / "next", d_ / "again")), "");
  EXPECT_EQ(read_file(d_ / "again"), read_file(d_ / "delta"));
}

TEST_F(DeltaFiles, refuse_checkpoints_that_are_none_by_name) {
  EXPECT_THAT(why(make(d_ / "base", d_ / "nowhere", d_ / "x")), HasSubstr("nowhere"));
  EXPECT_THAT(why(make(d_ / "base", d_ / "next/config.json", d_ / "x")),
              HasSubstr("give two folders or two files"));
  fs::create_directory(d_ / "empty");
  EXPECT_THAT(why(make(d_ / "base", d_ / "empty", d_ / "x")), HasSubstr("has no files"));
  fs::create_symlink(d_ / "delta", d_ / "next/stolen");
  EXPECT_THAT(why(make(d_ / "base", d_ / "next", d_ / "x")),
              AllOf(HasSubstr("next/stolen"), HasSubstr("outside the checkpoint")));
  fs::remove(d_ / "next/stolen");
  write_bytes(d_ / "next/broken.safetensors", "broken");
  EXPECT_THAT(why(make(d_ / "base", d_ / "next", d_ / "x")), HasSubstr("broken.safetensors"));
  fs::remove(d_ / "next/broken.safetensors");
  write_bytes(d_ / "next/.cache/lock", "not the checkpoint's");
  const auto made = make(d_ / "base", d_ / "next", d_ / "x");
  ASSERT_EQ(why(made), "");
  EXPECT_EQ(read_file(d_ / "x"), read_file(d_ / "delta"));
}

}  // namespace
}  // namespace reshard
