// SPDX-License-Identifier: Apache-2.0
// Protects: the packed form does not depend on where it is cut, packing and unpacking are the copy,
// and a cursor can be kept and moved.
#include "reshard/transform/pack.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "reshard/transform/transform_testutil.h"

namespace reshard {
namespace {

StridedCopy any_copy() {
  StridedCopy copy;
  copy.run_bytes = *rc::gen::element<Index>(1, 2, 7, 64, 200, 1500);
  copy.num_loops = *rc::gen::inRange(0, 4);
  Index src = copy.run_bytes, dst = copy.run_bytes;
  for (int k = copy.num_loops - 1; k >= 0; --k) {
    src += *rc::gen::element<Index>(0, 3, 64);
    dst += *rc::gen::element<Index>(0, 5, 64);
    const Index count = *rc::gen::inRange<Index>(2, 6);
    copy.loops[static_cast<std::size_t>(k)] = {count, src, dst};
    src *= count;
    dst *= count;
  }
  copy.src_offset = *rc::gen::inRange<Index>(0, 10);
  copy.dst_offset = *rc::gen::inRange<Index>(0, 10);
  return copy;
}

/// One past the last byte that the copy touches on a side.
template <class Side>
Index extent(const StridedCopy& copy, Index offset, Side stride) {
  Index end = offset + copy.run_bytes;
  for (int k = 0; k < copy.num_loops; ++k) {
    const auto& loop = copy.loops[static_cast<std::size_t>(k)];
    end += (loop.count - 1) * loop.*stride;
  }
  return end;
}

RC_GTEST_PROP(Pack, messages_cut_anywhere_hold_the_packed_form, ()) {
  const StridedCopy copy = any_copy();
  const auto src = random_bytes(extent(copy, copy.src_offset, &StridedCopy::Loop::src_stride), 1);
  std::vector<std::byte> expected;
  for_each_run(copy, [&](Index s, Index, Index n) {
    expected.insert(expected.end(), src.begin() + s, src.begin() + s + n);
  });
  std::vector<std::byte> packed;
  PackCursor cursor(copy);
  while (cursor.left() > 0) {
    const auto wanted = *rc::gen::element<std::size_t>(1, 5, 63, 200, 1000, 4096, 20000);
    std::vector<std::byte> message(wanted + 8, std::byte{0xee});
    const Index n = pack(cursor, src.data(), std::span(message).first(wanted), CopyHint::cached);
    RC_ASSERT(n > 0 && n <= static_cast<Index>(wanted));
    for (std::size_t i = static_cast<std::size_t>(n); i < message.size(); ++i)
      RC_ASSERT(message[i] == std::byte{0xee});
    packed.insert(packed.end(), message.begin(), message.begin() + n);
  }
  RC_ASSERT(packed == expected);
  RC_ASSERT(cursor.done() == copy.bytes());
}

RC_GTEST_PROP(Pack, unpacking_what_was_packed_is_the_copy, ()) {
  const StridedCopy copy = any_copy();
  const auto src = random_bytes(extent(copy, copy.src_offset, &StridedCopy::Loop::src_stride), 1);
  const auto before =
      random_bytes(extent(copy, copy.dst_offset, &StridedCopy::Loop::dst_stride) + 70, 2);
  auto expected = before, dst = before;
  run_copy(copy, src.data(), expected.data(), CopyHint::cached);
  PackCursor from(copy), to(copy);
  std::vector<std::byte> staging(*rc::gen::element<std::size_t>(1, 13, 300, 9000));
  while (from.left() > 0) {
    const Index n = pack(from, src.data(), staging, CopyHint::cached);
    const auto message = std::span(staging).first(static_cast<std::size_t>(n));
    const auto half = message.size() / 2;
    RC_ASSERT(unpack(to, message.first(half), dst.data(), CopyHint::streaming) ==
              static_cast<Index>(half));
    unpack(to, message.subspan(half), dst.data(), CopyHint::streaming);
    copy_fence();
  }
  RC_ASSERT(to.left() == 0);
  RC_ASSERT(dst == expected);
}

TEST(Pack, a_cursor_that_is_sent_back_packs_the_same_bytes_again) {
  StridedCopy copy{.run_bytes = 10, .num_loops = 1};
  copy.loops[0] = {4, 20, 10};
  const auto src = random_bytes(100, 1);
  PackCursor cursor(copy);
  std::vector<std::byte> whole(40), again(15);
  EXPECT_EQ(pack(cursor, src.data(), whole, CopyHint::cached), 40);
  cursor.seek(17);
  EXPECT_EQ(pack(cursor, src.data(), again, CopyHint::cached), 15);
  EXPECT_TRUE(std::equal(again.begin(), again.end(), whole.begin() + 17));
  EXPECT_EQ(cursor.left(), 8);
}

TEST(Pack, an_empty_copy_packs_to_nothing) {
  PackCursor cursor{StridedCopy{}};
  std::byte one{};
  EXPECT_EQ(pack(cursor, nullptr, {&one, 1}, CopyHint::cached), 0);
  EXPECT_EQ(unpack(cursor, {&one, 1}, nullptr, CopyHint::cached), 0);
}

}  // namespace
}  // namespace reshard
