// SPDX-License-Identifier: Apache-2.0
// Protects: a safetensors file, whatever its content, is never read beyond its bytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>

#include "reshard/io/checkpoint/safetensors.h"
#include "reshard/io/files/temp_dir_testutil.h"

namespace reshard {
namespace {

using ::testing::HasSubstr;
using testing::safetensors_file;

struct Case {
  const char* name;
  std::string file;
  const char* words;  ///< that the message must have
  Code code = Code::corrupt;
};

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

/// A file of one tensor "t" with these fields and 8 bytes of data.
std::string one(const std::string& fields) {
  return safetensors_file("{\"t\":{" + fields + "}}", 8);
}

std::string entry(const std::string& name, int begin, int end) {
  return "\"" + name + "\":{\"dtype\":\"U8\",\"shape\":[" + std::to_string(end - begin) +
         "],\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(end) + "]}";
}

std::string several(const std::string& entries, std::size_t data_bytes) {
  return safetensors_file("{" + entries + "}", data_bytes);
}

std::vector<Case> frame_cases() {
  constexpr std::uint64_t kLimit = 100'000'000, kSign = std::uint64_t{1} << 63;
  const std::string good = several(entry("t", 0, 8), 8);
  return {
      {"one_byte", "x", "1 bytes are too few"},
      {"seven_bytes", std::string(7, '\0'), "7 bytes are too few"},
      {"empty_header", std::string(8, '\0'), "must begin with an opening brace"},
      {"length_2_63", safetensors_file(kSign, "{}", 0),
       "header length 9223372036854775808 is above"},
      {"length_all_ones", safetensors_file(~std::uint64_t{0}, "{}", 0), "is above the limit"},
      {"length_wraps_to_0", safetensors_file(~std::uint64_t{0} - 7, "{}", 0), "is above the limit"},
      {"length_over_limit", safetensors_file(kLimit + 1, "{}", 0), "above the limit of 100000000"},
      {"length_at_limit_truncated", safetensors_file(kLimit, "{}", 0), "past the end of the file"},
      {"length_one_too_long", safetensors_file(3, "{}", 0), "past the end of the file of 10 bytes"},
      {"cut_in_the_header", good.substr(0, 20), "may be truncated"},
      {"cut_in_the_data", good.substr(0, good.size() - 1), "which has 7 bytes of data"},
      {"lfs_pointer", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"},
      {"leading_space", safetensors_file(" {}", 0), "must begin with an opening brace"},
      {"a_list", safetensors_file("[]", 0), "must begin with an opening brace"},
      {"text_after", safetensors_file("{}x", 0), "not JSON at byte 2"},
      {"nul_after", safetensors_file(std::string("{}\0junk", 7), 0), "NUL"},
      {"cut_json", safetensors_file("{\"t\":", 0), "not JSON"},
      {"not_utf8_name", several(entry("\xff\xfe", 0, 8), 8), "not UTF-8 at byte 2"},
      {"surrogate_name", several(entry("\xed\xa0\x80", 0, 8), 8), "not UTF-8"},
      {"half_surrogate", several(entry("\\ud800", 0, 8), 8), "not JSON"},
      {"deep",
       safetensors_file("{\"t\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}", 0),
       "nested deeper than"},
  };
}

std::vector<Case> tensor_cases() {
  const std::string range = "\"data_offsets\":[0,8]", shape = "\"shape\":[8]",
                    u8 = "\"dtype\":\"U8\",";
  const auto shaped = [&](const std::string& sizes) {
    return one(u8 + "\"shape\":" + sizes + "," + range);
  };
  const auto placed = [&](const std::string& ends) {
    return one(u8 + shape + ",\"data_offsets\":" + ends);
  };
  const std::string p40 = "1099511627776";
  return {
      {"tensor_is_a_number", safetensors_file("{\"t\":1}", 0),
       "tensor \"t\": must be an object, is 1"},
      {"no_dtype", one(shape + "," + range), "tensor \"t\": dtype is missing"},
      {"dtype_is_a_number", one("\"dtype\":8," + shape + "," + range),
       "dtype must be a string, is 8"},
      {"dtype_unknown", one("\"dtype\":\"U9\"," + shape + "," + range), "dtype \"U9\"",
       Code::unsupported},
      {"no_shape", one(u8 + range), "shape is missing"},
      {"shape_is_an_object", shaped("{}"), "shape must be a list, is an object"},
      {"shape_fraction", shaped("[8.0]"),
       "shape entries must be integers from 0 to 2^63 - 1, one is 8.0"},
      {"shape_text", shaped("[\"8\"]"), "one is \"8\""},
      {"shape_true", shaped("[true,8]"), "one is true"},
      {"shape_null", shaped("[null]"), "one is null"},
      {"shape_negative", shaped("[-8]"), "one is -8"},
      {"shape_two_negatives", shaped("[-2,-4]"), "one is -2"},
      {"shape_2_63", shaped("[9223372036854775808]"), "one is 9223372036854775808"},
      {"shape_2_64", shaped("[18446744073709551616]"), "one is 18446744073709551616"},
      {"shape_9_dims", shaped("[1,1,1,1,1,1,1,1,8]"), "9 dimensions, at most 8", Code::unsupported},
      {"product_wraps_to_0", shaped("[" + p40 + "," + p40 + "]"), "overflow"},
      {"product_wraps_to_8", shaped("[8,4611686018427387905,4]"), "overflow"},
      {"zero_hides_overflow", shaped("[0," + p40 + "," + p40 + "]"), "overflow"},
      {"bytes_overflow", one("\"dtype\":\"F64\",\"shape\":[2305843009213693953]," + range),
       "overflow"},
      {"sub_byte_not_whole", one("\"dtype\":\"F4\",\"shape\":[15]," + range),
       "not a whole number of bytes"},
      {"wrong_size", one("\"dtype\":\"F32\"," + shape + "," + range),
       "F32 of shape [8] takes 32 bytes, but data_offsets [0, 8) hold 8"},
      {"wrong_dtype_size", one("\"dtype\":\"F4\"," + shape + "," + range), "takes 4 bytes"},
      {"no_offsets", one(u8 + "\"shape\":[8]"), "data_offsets is missing"},
      {"offsets_null", placed("null"), "data_offsets must be a list of two integers, is null"},
      {"one_offset", placed("[8]"), "is a list of 1"},
      {"three_offsets", placed("[0,8,16]"), "is a list of 3"},
      {"offset_negative", placed("[-8,0]"), "one is -8"},
      {"offset_fraction", placed("[0,8.5]"), "one is 8.5"},
      {"offset_2_64", placed("[18446744073709551608,18446744073709551616]"),
       "data_offsets must be"},
      {"begin_after_end", placed("[8,0]"), "[8, 0) end before they begin"},
      {"past_the_end", placed("[0,16]"), "past the end of the file, which has 8 bytes"},
      {"far_past_the_end", placed("[9223372036854775799,9223372036854775807]"), "past the end"},
  };
}

std::vector<Case> cover_cases() {
  return {
      {"overlap", several(entry("a", 0, 8) + "," + entry("b", 4, 12), 12),
       "tensors \"a\" and \"b\" overlap: bytes [0, 8) and [4, 12)"},
      {"same_range", several(entry("a", 0, 8) + "," + entry("b", 0, 8), 8), "overlap"},
      {"inside_another", several(entry("a", 0, 8) + "," + entry("b", 2, 4), 8), "overlap"},
      {"empty_inside_another", several(entry("a", 0, 8) + "," + entry("b", 4, 4), 8), "overlap"},
      {"hole", several(entry("a", 0, 4) + "," + entry("b", 6, 8), 8),
       "bytes [4, 6) before tensor \"b\" belong to no tensor"},
      {"hole_at_the_front", several(entry("a", 4, 8), 8), "bytes [0, 4) before"},
      {"trailing", several(entry("a", 0, 8), 9), "1 trailing bytes"},
      {"data_without_tensors", safetensors_file("{}", 5), "5 trailing bytes"},
      {"name_twice", several(entry("a", 0, 4) + "," + entry("a", 4, 8), 8), "\"a\" appears twice"},
      {"name_twice_escaped", several(entry("a", 0, 4) + "," + entry("\\u0061", 4, 8), 8),
       "\"a\" appears twice"},
      {"field_twice", one("\"dtype\":\"U8\",\"dtype\":\"I8\",\"shape\":[8],\"data_offsets\":[0,8]"),
       "\"dtype\" appears twice"},
      {"metadata_twice", safetensors_file("{\"__metadata__\":{},\"__metadata__\":{}}", 0),
       "appears twice"},
      {"metadata_list", safetensors_file("{\"__metadata__\":[]}", 0),
       "__metadata__ must be an object"},
      {"metadata_number", safetensors_file("{\"__metadata__\":{\"k\":1}}", 0),
       "\"k\" must be a string, is 1"},
      {"control_characters_in_a_name", several(entry("\\n\\u001b[31m", 0, 9), 8),
       "tensor \"\\n\\u001b[31m\""},
      {"very_long_name", several(entry(std::string(100'000, 'n'), 0, 9), 8),
       "has 100000 bytes, at most 1024 are allowed"},
  };
}

class HostileSafetensors : public ::testing::TestWithParam<Case> {};

TEST_P(HostileSafetensors, is_refused_with_its_own_words) {
  const auto& c = GetParam();
  const auto header = parse_safetensors(testing::bytes_of(c.file));
  ASSERT_FALSE(header);
  EXPECT_EQ(header.error().code, c.code) << header.error().message;
  EXPECT_THAT(header.error().message, HasSubstr(c.words));
  EXPECT_EQ(header.error().message.find('\n'), std::string::npos);
  EXPECT_LT(header.error().message.size(), 500u);
}

const auto kName = [](const auto& info) { return std::string(info.param.name); };
INSTANTIATE_TEST_SUITE_P(Frame, HostileSafetensors, ::testing::ValuesIn(frame_cases()), kName);
INSTANTIATE_TEST_SUITE_P(Tensor, HostileSafetensors, ::testing::ValuesIn(tensor_cases()), kName);
INSTANTIATE_TEST_SUITE_P(Cover, HostileSafetensors, ::testing::ValuesIn(cover_cases()), kName);

TEST(HarmlessSafetensors, unusual_files_are_read) {
  for (const auto& file :
       {safetensors_file("{}", 0), safetensors_file("{\"__metadata__\":null}", 0),
        several(entry("", 0, 8), 8), several(entry("b", 4, 8) + "," + entry("a", 0, 4), 8),
        several(entry("empty", 4, 4) + "," + entry("a", 0, 4) + "," + entry("b", 4, 8), 8),
        one("\"extra\":{},\"dtype\":\"F6_E2M3\",\"shape\":[4,0],\"data_offsets\":[8,8]},"
            "\"u\":{\"dtype\":\"F6_E2M3\",\"shape\":[2,1,4],\"data_offsets\":[0,6]},"
            "\"v\":{\"dtype\":\"F4\",\"shape\":[4],\"data_offsets\":[6,8]")}) {
    const auto header = parse_safetensors(testing::bytes_of(file));
    EXPECT_TRUE(header) << header.error().message;
  }
}

void expect_corrupt(const std::string& file, const char* words) {
  const auto header = parse_safetensors(testing::bytes_of(file));
  ASSERT_FALSE(header);
  EXPECT_EQ(header.error().code, Code::corrupt);
  EXPECT_THAT(header.error().message, HasSubstr(words));
}

TEST(HostileSafetensorsFile,
     a_100_MB_header_is_read_to_its_end_and_no_more_memory_than_its_values_allow) {
  std::string blanks = "{";
  blanks.resize(100'000'000, ' ');
  expect_corrupt(safetensors_file(blanks, 0), "not JSON at byte 100000000");
  std::string zeros = "{\"t\":[0";
  for (int i = 0; i < 9'000'000; ++i) zeros += ",0";
  expect_corrupt(safetensors_file(zeros + "]}", 0), "more than 2097152 JSON values");
}

TEST(HostileSafetensorsFile, errors_name_the_path) {
  const testing::TempDir dir;
  const auto message = [](const std::string& path) {
    return SafetensorsFile::open(path).error().message;
  };
  EXPECT_THAT(message(dir.write("short.safetensors", "abc")),
              HasSubstr("short.safetensors: 3 bytes"));
  EXPECT_THAT(message(dir.write("empty.safetensors", "")),
              HasSubstr("empty.safetensors: the file is empty"));
  EXPECT_THAT(message(dir.path()), HasSubstr("is a folder"));
  EXPECT_THAT(message(dir / "none.safetensors"),
              HasSubstr("none.safetensors: cannot open the file: it does not"));
}

TEST(HostileSafetensorsFile, a_sparse_file_of_terabytes_costs_nothing) {
  const testing::TempDir dir;
  const auto path =
      dir.write("huge", safetensors_file("{\"t\":{\"dtype\":\"U8\",\"shape\":[1099511627776],"
                                         "\"data_offsets\":[0,1099511627776]}}",
                                         0));
  if (::truncate(path.c_str(), std::int64_t{1} << 40) != 0) GTEST_SKIP() << "no sparse files here";
  const auto file = SafetensorsFile::open(path);
  ASSERT_FALSE(file);
  EXPECT_THAT(file.error().message, HasSubstr("past the end of the file"));
}

}  // namespace
}  // namespace reshard
