// SPDX-License-Identifier: Apache-2.0
// Protects: what the writer stores the reader gives back, aligned and in a file that is exactly
// covered.
#include "reshard/io/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <numeric>

#include "reshard/base/hash.h"
#include "reshard/io/checkpoint/safetensors_writer.h"
#include "reshard/io/files/temp_dir_testutil.h"

namespace reshard {
namespace {

using ::testing::HasSubstr;
using testing::TempDir;

/// Tensors of every dtype, some empty, some scalars, with names that need escaping.
std::vector<TensorSpec> any_tensors() {
  std::vector<TensorSpec> tensors;
  const int n = *rc::gen::inRange(0, 8);
  for (int i = 0; i < n; ++i) {
    TensorSpec tensor;
    tensor.name = std::string(i % 3 == 0 ? "w\"\\\n\xc3\xa9." : "layer.") + std::to_string(i);
    tensor.dtype = static_cast<DType>(*rc::gen::inRange(0, static_cast<int>(DType::u64) + 1));
    const int rank = *rc::gen::inRange(0, 4);
    for (int d = 0; d < rank; ++d) tensor.shape.push_back(*rc::gen::inRange<Index>(0, 6));
    if (!bytes_of(tensor.dtype, volume(tensor.shape))) tensor.shape = {4, 2};
    tensors.push_back(tensor);
  }
  return tensors;
}

std::vector<std::byte> content(const StoredTensor& tensor) {
  std::vector<std::byte> data(static_cast<std::size_t>(tensor.bytes));
  std::uint64_t state = hash64(tensor.name);
  for (auto& byte : data) byte = std::byte(state = mix64(state));
  return data;
}

RC_GTEST_PROP(Safetensors, reads_back_what_was_written_in_any_order_and_pieces, ()) {
  const TempDir dir;
  const auto specs = any_tensors();
  StringMap metadata;
  if (*rc::gen::arbitrary<bool>()) metadata = {{"format", "pt"}, {"k\"\n", "\xe2\x82\xac"}};
  auto writer = *SafetensorsWriter::create(dir / "a.safetensors", specs, metadata);
  std::vector<std::size_t> order(specs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::reverse(order.begin(), order.end());
  for (const auto i : order) {
    const auto data = content(writer.tensors()[i]);
    const auto cut = data.size() / 3;
    const std::span<const std::byte> all(data);
    const std::vector<std::span<const std::byte>> pieces = {
        all.subspan(cut, cut), {}, all.subspan(2 * cut)};
    RC_ASSERT(writer.write_pieces_at(i, static_cast<std::int64_t>(cut), pieces).has_value());
    RC_ASSERT(writer.write_at(i, 0, all.first(cut)).has_value());
  }
  RC_ASSERT(writer.finish().has_value());

  const auto file = SafetensorsFile::open(dir / "a.safetensors");
  RC_ASSERT(file.has_value());
  RC_ASSERT(file->metadata() == metadata);
  RC_ASSERT(file->tensors().size() == specs.size());
  RC_ASSERT(file->mapping().size() == writer.file_bytes());
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const auto* tensor = file->find(specs[i].name);
    RC_ASSERT(tensor != nullptr);
    RC_ASSERT(*tensor == writer.tensors()[i]);
    RC_ASSERT(static_cast<const TensorSpec&>(*tensor) == specs[i]);
    RC_ASSERT(tensor->offset % std::max(1, bits(tensor->dtype) / 8) == 0);
    RC_ASSERT(std::ranges::equal(file->data(*tensor), content(*tensor)));
  }
  RC_ASSERT(file->find("no such tensor") == nullptr);
}

TEST(Safetensors, header_is_what_other_readers_expect) {
  const std::vector<TensorSpec> tensors = {
      {"b", DType::bf16, {2, 3}}, {"a", DType::f32, {1}}, {"s", DType::u8, {}}};
  const auto plan = *plan_safetensors(tensors, {{"format", "pt"}});
  const std::string json =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
      R"("b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},)"
      R"("s":{"dtype":"U8","shape":[],"data_offsets":[16,17]}})";
  EXPECT_EQ(plan.head.substr(8, json.size()), json);
  EXPECT_EQ(plan.head.size() % 8, 0u);
  EXPECT_EQ(plan.head.find_first_not_of(' ', 8 + json.size()), std::string::npos);
  EXPECT_EQ(static_cast<std::size_t>(static_cast<unsigned char>(plan.head[0])),
            plan.head.size() - 8);
  EXPECT_EQ(plan.tensors[0].offset, static_cast<std::int64_t>(plan.head.size()) + 4);
  EXPECT_EQ(plan.file_bytes, static_cast<std::int64_t>(plan.head.size()) + 17);
}

TEST(Safetensors, many_small_pieces_are_gathered_in_order) {
  const TempDir dir;
  std::vector<std::byte> data(5000);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = std::byte(mix64(i));
  std::vector<std::span<const std::byte>> pieces;
  for (std::size_t i = 0; i < data.size(); i += 5) pieces.push_back(std::span(data).subspan(i, 5));
  auto writer = *SafetensorsWriter::create(dir / "a", {{"t", DType::u8, {5000}}});
  ASSERT_TRUE(writer.write_pieces_at(0, 0, pieces));
  ASSERT_TRUE(writer.finish(true));
  const auto file = *SafetensorsFile::open(dir / "a");
  EXPECT_TRUE(std::ranges::equal(file.data(file.tensors()[0]), data));
}

void expect_refused(const std::vector<TensorSpec>& tensors, const StringMap& metadata,
                    const char* words) {
  const auto plan = plan_safetensors(tensors, metadata);
  ASSERT_FALSE(plan) << words;
  EXPECT_EQ(plan.error().code, Code::invalid_argument);
  EXPECT_THAT(plan.error().message, HasSubstr(words));
}

TEST(Safetensors, requests_that_no_reader_would_accept_are_refused) {
  const Index big = Index{1} << 60;
  expect_refused({{"a", DType::u8, {1}}, {"b", DType::u8, {1}}, {"a", DType::u8, {1}}}, {},
                 "\"a\" is listed twice");
  expect_refused({{"__metadata__", DType::u8, {1}}}, {}, "reserved");
  expect_refused({{"\xff", DType::u8, {1}}}, {}, "not UTF-8");
  expect_refused({}, {{"k", "\xff"}}, "not UTF-8");
  expect_refused({{"a", DType::u8, {-1}}}, {}, "negative");
  expect_refused({{"a", DType::f4, {3}}}, {}, "whole number of bytes");
  expect_refused({{"a", DType::f64, {big}}}, {}, "overflow");
  expect_refused({{"a", DType::u8, {0, big, big}}}, {}, "overflow");
  expect_refused({{"a", DType::u8, {big / 2}},
                  {"b", DType::u8, {big}},
                  {"c", DType::u8, {big - 1}},
                  {"d", DType::u8, {big - 1}},
                  {"e", DType::u8, {big - 1}},
                  {"f", DType::u8, {big - 1}},
                  {"g", DType::u8, {big - 1}},
                  {"h", DType::u8, {big - 1}},
                  {"i", DType::u8, {big - 1}}},
                 {}, "more bytes than 64 bits");
}

TEST(Safetensors, a_writer_overwrites_nothing_and_leaves_nothing_half_written) {
  const TempDir dir;
  const auto there = dir.write("there", "precious");
  const auto refused = SafetensorsWriter::create(there, {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::invalid_argument);
  EXPECT_THAT(refused.error().message, HasSubstr("exists"));
  EXPECT_EQ(testing::read_file(there), "precious");
  EXPECT_EQ(SafetensorsWriter::create(dir / "no/file", {}).error().code, Code::not_found);
  {
    auto writer = *SafetensorsWriter::create(dir / "abandoned", {{"t", DType::u8, {4}}});
    ASSERT_TRUE(writer.write_at(0, 0, testing::bytes_of("abc")));
    const auto early = writer.finish();
    ASSERT_FALSE(early);
    EXPECT_THAT(early.error().message, HasSubstr("bytes were written"));
  }
  const std::vector<TensorBytes> wrong = {{{"t", DType::u8, {4}}, testing::bytes_of("abc")}};
  EXPECT_THAT(write_safetensors(dir / "wrong", wrong).error().message,
              HasSubstr("3 bytes of data, must be 4"));
  EXPECT_EQ(dir.names(), std::vector<std::string>{"there"});
}

TEST(Safetensors, a_header_of_more_tensors_than_whole_models_have_is_refused_before_it_is_kept) {
  std::string header = R"({"a": [0)";
  for (int i = 0; i < 2 << 20; ++i) header += ",0";
  header += "]}";
  std::string file(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
  file += header;
  const auto parsed = parse_safetensors(std::as_bytes(std::span(file)));
  ASSERT_FALSE(parsed);
  EXPECT_THAT(parsed.error().message, HasSubstr("more than 2097152 JSON values"));
}

TEST(Safetensors, a_full_disk_is_an_error_before_the_first_byte) {
  const TempDir dir;
  const auto writer = SafetensorsWriter::create(dir / "huge", {{"t", DType::u8, {Index{1} << 59}}});
  ASSERT_FALSE(writer);
  EXPECT_EQ(writer.error().code, Code::io);
  EXPECT_THAT(writer.error().message, HasSubstr("disk is full"));
  EXPECT_TRUE(dir.names().empty());
}

TEST(Safetensors, a_file_size_limit_is_an_error) {
  const TempDir dir;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1 << 16, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto writer = SafetensorsWriter::create(dir / "big", {{"t", DType::u8, {1 << 20}}});
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  ASSERT_FALSE(writer);
  EXPECT_EQ(writer.error().code, Code::io);
  EXPECT_THAT(writer.error().message, HasSubstr("larger than the system allows"));
  EXPECT_TRUE(dir.names().empty());
}

}  // namespace
}  // namespace reshard
