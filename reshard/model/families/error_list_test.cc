// SPDX-License-Identifier: Apache-2.0
// Protects: a message contains all errors, each once, and stays bounded.
#include "reshard/model/families/error_list.h"

#include <gtest/gtest.h>

namespace reshard::families {
namespace {

TEST(ErrorList, are_said_once_each_in_order) {
  ErrorList wrong("vllm");
  EXPECT_TRUE(wrong.result());
  wrong.add(Result<int>(1));
  EXPECT_EQ(wrong.take(Result<int>(fail(Code::unsupported, "vllm: a")), 7), 7);
  EXPECT_EQ(wrong.take(Result<int>(3)), 3);
  wrong.refuse("b");
  wrong.add(fail(Code::corrupt, "vllm: a"));
  const auto result = wrong.result();
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().message, "vllm: a; b");
  EXPECT_EQ(result.error().code, Code::unsupported);
}

TEST(ErrorList, beyond_the_most_are_counted) {
  ErrorList wrong("hf");
  for (std::size_t i = 0; i < ErrorList::kMaxShown + 3; ++i) wrong.refuse(std::to_string(i));
  EXPECT_EQ(wrong.result().error().message, "hf: 0; 1; 2; 3; 4; 5; 6; 7; and 3 more");
}

}  // namespace
}  // namespace reshard::families
