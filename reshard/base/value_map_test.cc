// SPDX-License-Identifier: Apache-2.0
// Protects: which conversions lose precision, and how forms, error codes and digests are spelled
// and kept.
#include "reshard/base/value_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "reshard/base/hash.h"
#include "reshard/base/install_dirs.h"
#include "reshard/base/result.h"

namespace reshard {
namespace {

constexpr DType kDtypes[] = {DType::f16, DType::bf16, DType::f32};

TEST(ValueMap, a_copy_loses_nothing_whatever_its_form) {
  for (const DType dtype : kDtypes)
    for (const ValueMap map :
         {ValueMap::identity, ValueMap::negated_exp, ValueMap::plus_one, ValueMap::minus_one}) {
      EXPECT_FALSE((Conversion{{dtype, map}, {dtype, map}}.converts()));
      EXPECT_FALSE(loses_precision({{dtype, map}, {dtype, map}}));
    }
}

TEST(ValueMap, a_dtype_loses_precision_where_the_target_has_fewer_bits_of_either_kind) {
  const auto loses = [](DType from, DType to) {
    return loses_precision({{from, ValueMap::identity}, {to, ValueMap::identity}});
  };
  EXPECT_FALSE(loses(DType::f16, DType::f32));
  EXPECT_FALSE(loses(DType::bf16, DType::f32));
  EXPECT_TRUE(loses(DType::f32, DType::f16));
  EXPECT_TRUE(loses(DType::f32, DType::bf16));
  EXPECT_TRUE(loses(DType::f16, DType::bf16));  // fewer mantissa bits
  EXPECT_TRUE(loses(DType::bf16, DType::f16));  // fewer exponent bits
}

TEST(ValueMap, another_map_rounds_even_into_a_wider_dtype) {
  EXPECT_TRUE(
      loses_precision({{DType::bf16, ValueMap::identity}, {DType::f32, ValueMap::negated_exp}}));
  EXPECT_TRUE(
      loses_precision({{DType::f32, ValueMap::plus_one}, {DType::f32, ValueMap::minus_one}}));
}

TEST(ValueMap, forms_are_spelled_with_their_map_where_they_have_one) {
  EXPECT_EQ(to_string(StoredForm{DType::bf16, ValueMap::identity}), "BF16");
  EXPECT_EQ(to_string(StoredForm{DType::f32, ValueMap::negated_exp}), "F32 as negated_exp");
  EXPECT_EQ(to_string(StoredForm{DType::f16, ValueMap::plus_one}), "F16 as plus_one");
  EXPECT_EQ(to_string(StoredForm{DType::f16, ValueMap::minus_one}), "F16 as minus_one");
  EXPECT_EQ(name(ValueMap::identity), "identity");
}

TEST(ValueMap, only_the_three_common_floats_are_converted) {
  for (const DType dtype : kDtypes) EXPECT_TRUE(is_convertible(dtype));
  for (const DType dtype : {DType::f64, DType::f8_e4m3, DType::f4, DType::i32})
    EXPECT_FALSE(is_convertible(dtype)) << name(dtype);
}

TEST(Code, each_has_a_spelling_of_its_own) {
  const std::vector<std::string_view> spelled = {
      name(Code::invalid_argument), name(Code::not_found), name(Code::corrupt),
      name(Code::unsupported),      name(Code::io),        name(Code::deadline),
      name(Code::aborted)};
  EXPECT_THAT(spelled, ::testing::ElementsAre("invalid_argument", "not_found", "corrupt",
                                              "unsupported", "io", "deadline", "aborted"));
}

TEST(Digest, moves_with_what_was_added) {
  Digest whole;
  for (int i = 0; i < 200; ++i) whole.add(i);  // more than it keeps before it hashes
  Digest first;
  for (int i = 0; i < 100; ++i) first.add(i);
  Digest second = std::move(first);
  for (int i = 100; i < 150; ++i) second.add(i);
  Digest third;
  third.add("something else");
  third = std::move(second);
  for (int i = 150; i < 200; ++i) third.add(i);
  EXPECT_EQ(third.value(), whole.value());
}

TEST(Digest, goes_on_after_its_value_was_read) {
  Digest once, twice;
  once.add("a").add("b");
  twice.add("a");
  EXPECT_NE(twice.value(), once.value());
  twice.add("b");
  EXPECT_EQ(twice.value(), once.value());
}

TEST(Hash, depends_on_text_and_seed) {
  EXPECT_EQ(hash64("weight"), hash64("weight"));
  EXPECT_NE(hash64("weight"), hash64("weights"));
  EXPECT_NE(hash64("weight", 1), hash64("weight", 2));
}

TEST(OwnFolders, begin_with_that_of_the_running_program) {
  const auto folders = install_dirs();
  ASSERT_FALSE(folders.empty());
  EXPECT_EQ(folders.front(), std::filesystem::read_symlink("/proc/self/exe").parent_path());
  for (const auto& folder : folders) EXPECT_TRUE(folder.is_absolute()) << folder;
}

}  // namespace
}  // namespace reshard
