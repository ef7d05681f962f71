// SPDX-License-Identifier: Apache-2.0
// Protects: two stored tensors are the same if and only if every byte is, however they are cut.
#include "reshard/io/identify/same_content.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "reshard/io/dcp/dcp_folder_testutil.h"
#include "reshard/io/files/temp_dir_testutil.h"

namespace reshard::identify {
namespace {

RC_GTEST_PROP(SameContent, of_two_cuts_is_what_their_bytes_say, ()) {
  const testing::TempDir dir;
  const DType dtype = *rc::gen::element(DType::u8, DType::bf16, DType::f32);
  const Dims shape{*rc::gen::inRange<Index>(1, 9), *rc::gen::inRange<Index>(1, 5)};
  testing::DcpTensor a = testing::dcp_tensor("a", dtype, shape, 1), b = a;
  b.spec.name = "b";
  a.rows = *rc::gen::inRange<Index>(0, 9);
  b.rows = *rc::gen::inRange<Index>(0, 9);
  const bool differs = *rc::gen::arbitrary<bool>();
  if (differs) b.bytes[*rc::gen::inRange<std::size_t>(0, b.bytes.size())] ^= 4;
  testing::write_dcp_folder(dir.path(), {a, b});
  const auto checkpoint = Checkpoint::open(dir.path());
  RC_ASSERT(checkpoint.has_value());
  RC_ASSERT(same_content(*checkpoint, "a", "b") == !differs);
}

TEST(SameContent, needs_the_same_dtype_and_shape) {
  const testing::TempDir dir;
  const auto with = [](std::string name, DType dtype, const Dims& shape) {
    testing::DcpTensor out = testing::dcp_tensor(std::move(name), dtype, shape, 1);
    std::fill(out.bytes.begin(), out.bytes.end(), '\0');
    return out;
  };
  testing::write_dcp_folder(
      dir.path(),
      {with("a", DType::bf16, {4, 2}), with("b", DType::f16, {4, 2}),
       with("c", DType::bf16, {2, 4}), with("d", DType::bf16, {8}), with("e", DType::bf16, {4, 2}),
       with("s", DType::f32, {}), with("t", DType::f32, {})});
  const auto checkpoint = Checkpoint::open(dir.path());
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  for (const char* other : {"b", "c", "d", "s"})
    EXPECT_FALSE(same_content(*checkpoint, "a", other)) << other;
  EXPECT_TRUE(same_content(*checkpoint, "a", "e"));
  EXPECT_TRUE(same_content(*checkpoint, "s", "t"));
}

}  // namespace
}  // namespace reshard::identify
