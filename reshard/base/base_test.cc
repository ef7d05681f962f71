// SPDX-License-Identifier: Apache-2.0
// Protects: the spelling of errors and dtypes; different sequences have different digests.
#include <gtest/gtest.h>

#include "reshard/base/dtype.h"
#include "reshard/base/hash.h"
#include "reshard/base/ids.h"
#include "reshard/base/result.h"

namespace reshard {
namespace {

Result<int> half(int x) {
  if (x % 2 != 0) return fail(Code::invalid_argument, "odd");
  return x / 2;
}

Result<int> quarter(int x) {
  const int h = RESHARD_TRY(half(x));
  return RESHARD_TRY(half(h));
}

TEST(Result, try_returns_the_value_or_the_first_error) {
  EXPECT_EQ(quarter(8), 2);
  ASSERT_FALSE(quarter(6));
  EXPECT_EQ(quarter(6).error().message, "odd");
}

TEST(Result, context_is_put_in_front) {
  const Error e = Error{Code::corrupt, "bad header"}.in("file x").in("reading");
  EXPECT_EQ(e.message, "reading: file x: bad header");
  EXPECT_EQ(e.code, Code::corrupt);
}

TEST(DType, every_name_reads_back) {
  for (int i = 0; i <= static_cast<int>(DType::u64); ++i) {
    const auto d = static_cast<DType>(i);
    EXPECT_EQ(dtype_from_name(name(d)), d) << name(d);
    EXPECT_GT(bits(d), 0);
  }
  EXPECT_FALSE(dtype_from_name("bf16"));
  EXPECT_EQ(dtype_from_torch_name("torch.bfloat16"), DType::bf16);
  EXPECT_FALSE(dtype_from_torch_name(""));
}

TEST(DType, bytes_are_refused_when_not_whole_or_too_many) {
  EXPECT_EQ(bytes_of(DType::bf16, 3), 6);
  EXPECT_EQ(bytes_of(DType::f4, 6), 3);
  EXPECT_FALSE(bytes_of(DType::f4, 3));
  EXPECT_FALSE(bytes_of(DType::f6_e2m3, 2));
  EXPECT_EQ(bytes_of(DType::f6_e2m3, 4), 3);
  EXPECT_FALSE(bytes_of(DType::u8, -1));
  EXPECT_FALSE(bytes_of(DType::f64, std::int64_t{1} << 60));
}

TEST(Digest, separates_sequences_that_join_to_the_same_text) {
  EXPECT_NE(Digest().add("ab").add("c").value(), Digest().add("a").add("bc").value());
  EXPECT_EQ(Digest().add("ab").add(7).value(), Digest().add("ab").add(7L).value());
  EXPECT_EQ(hex(0x0123456789abcdefULL), "0123456789abcdef");
}

}  // namespace
}  // namespace reshard
