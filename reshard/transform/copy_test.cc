// SPDX-License-Identifier: Apache-2.0
// Protects: every kind of copy writes exactly the bytes that the definition of StridedCopy says, at
// every instruction set, size, alignment and hint.
#include "reshard/transform/copy.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <vector>

#include "reshard/base/hash.h"
#include "reshard/transform/transform_testutil.h"

namespace reshard {
namespace {

using Loop = StridedCopy::Loop;

/// Expects that `tasks` write what their definition says into `dst`, of which every other byte is a
/// guard.
void expect_copies(std::span<const CopyTask> tasks, std::vector<std::byte>& dst) {
  const std::vector<std::byte> before = dst;
  std::vector<std::byte> expected = before;
  for (const CopyTask& t : tasks) {
    for_each_run(t.copy, [&](Index s, Index d, Index n) {
      std::copy_n(t.src + s, n, expected.data() + (t.dst - dst.data()) + d);
    });
  }
  for (const KernelChoice choice : kernel_choices()) {
    const KernelScope scope(choice);
    for (CopyHint hint : {CopyHint::streaming, CopyHint::cached}) {
      dst = before;
      run_copies(tasks, hint);
      copy_fence();
      RC_ASSERT(dst == expected);
      dst = before;
      for (const CopyTask& t : tasks) run_copy(t.copy, t.src, t.dst, hint);
      copy_fence();
      RC_ASSERT(dst == expected);
    }
  }
}

void expect_copy(const StridedCopy& copy, Index src_bytes, Index dst_bytes) {
  const auto src = random_bytes(src_bytes, 1);
  auto dst = random_bytes(dst_bytes, 2);
  const CopyTask task{copy, src.data(), dst.data()};
  expect_copies({&task, 1}, dst);
}

RC_GTEST_PROP(Copy, contiguous_copies_are_exact_at_any_size_and_alignment, ()) {
  const Index bytes =
      *rc::gen::oneOf(rc::gen::inRange<Index>(0, 300), rc::gen::inRange<Index>(3000, 5000),
                      rc::gen::inRange<Index>(30000, 70000));
  const Index from = *rc::gen::inRange<Index>(0, 130), to = *rc::gen::inRange<Index>(0, 130);
  const auto src = random_bytes(from + bytes, 1);
  const auto before = random_bytes(to + bytes + 130, 2);
  auto expected = before;
  std::copy_n(src.begin() + from, bytes, expected.begin() + to);
  for (const KernelChoice choice : kernel_choices()) {
    const KernelScope scope(choice);
    for (CopyHint hint : {CopyHint::streaming, CopyHint::cached}) {
      auto dst = before;
      copy_bytes(dst.data() + to, src.data() + from, bytes, hint);
      copy_fence();
      RC_ASSERT(dst == expected);
    }
  }
}

/// Up to three loops with gaps of 0 to `gap` bytes; each run and each gap is where it should be.
RC_GTEST_PROP(Copy, runs_of_any_length_alignment_and_pitch_are_exact, ()) {
  StridedCopy copy;
  copy.run_bytes = *rc::gen::oneOf(rc::gen::inRange<Index>(1, 70), rc::gen::inRange<Index>(60, 600),
                                   rc::gen::inRange<Index>(1000, 9000));
  copy.num_loops = *rc::gen::inRange(0, 4);
  Index src = copy.run_bytes, dst = copy.run_bytes;
  for (int k = copy.num_loops - 1; k >= 0; --k) {
    const auto gap = rc::gen::element<Index>(0, 0, 1, 13, 64, 192);
    const Index count = *rc::gen::inRange<Index>(2, copy.num_loops == 1 ? 40 : 5);
    src += *gap;
    dst += *gap;
    copy.loops[static_cast<std::size_t>(k)] = {count, src, dst};
    src *= count;
    dst *= count;
  }
  copy.src_offset = *rc::gen::inRange<Index>(0, 80);
  copy.dst_offset = *rc::gen::inRange<Index>(0, 80);
  expect_copy(copy, copy.src_offset + src, copy.dst_offset + dst + 100);
}

RC_GTEST_PROP(Copy, transpositions_of_elements_of_any_size_are_exact, ()) {
  const Index element = *rc::gen::element<Index>(1, 2, 3, 4, 8, 12, 16, 32);
  const Dims shape{*rc::gen::inRange<Index>(1, 4), *rc::gen::inRange<Index>(1, 150),
                   *rc::gen::inRange<Index>(1, 150)};
  const Index pad = *rc::gen::inRange<Index>(0, 9);
  const Index rows = shape[1], columns = shape[2];
  const Strided src{*rc::gen::inRange<Index>(0, 9), Dims{rows * (columns + pad), columns + pad, 1}};
  const Strided dst{*rc::gen::inRange<Index>(0, 9), Dims{columns * (rows + pad), 1, rows + pad}};
  const auto copy = make_copy(shape, src, dst, static_cast<int>(8 * element));
  RC_ASSERT(copy.has_value());
  expect_copy(*copy, (src.offset + volume(shape) + shape[0] * rows * pad) * element,
              (dst.offset + volume(shape) + shape[0] * columns * pad + 16) * element);
}

/// Column slices of one tensor towards separate ones, or from separate ones into one.
RC_GTEST_PROP(Copy, column_slices_together_are_exact, ()) {
  const int n = *rc::gen::inRange(1, 40);
  const Index unit = *rc::gen::element<Index>(1, 2, 16, 64);
  const Index rows = *rc::gen::inRange<Index>(1, 40), outer = *rc::gen::inRange<Index>(1, 3);
  const Index gap = *rc::gen::element<Index>(0, 0, 64, 2);
  const bool gather = *rc::gen::arbitrary<bool>();
  std::vector<Index> widths;
  for (int i = 0; i < n; ++i) widths.push_back(unit * *rc::gen::inRange<Index>(1, 2 + 700 / unit));
  Index pitch = gap;
  for (Index w : widths) pitch += w;
  std::vector<CopyTask> tasks;
  const Index whole = rows * outer * pitch, lead = *rc::gen::inRange<Index>(0, 70);
  const auto src = random_bytes(lead + 2 * whole, 1);
  auto dst = random_bytes(lead + 2 * whole + 70, 2);
  Index column = lead, packed = lead;
  for (Index w : widths) {
    const Strided wide{column, Dims{rows * pitch, pitch, 1}}, narrow{packed, Dims{rows * w, w, 1}};
    const auto copy =
        make_copy({outer, rows, w}, gather ? narrow : wide, gather ? wide : narrow, 8);
    tasks.push_back({*copy, src.data(), dst.data()});
    column += w;
    packed += w * rows * outer;
  }
  if (*rc::gen::arbitrary<bool>()) std::ranges::reverse(tasks);
  expect_copies(tasks, dst);
}

RC_GTEST_PROP(Copy, tasks_of_all_kinds_mix, ()) {
  const auto src = random_bytes(1 << 17, 1);
  std::vector<std::byte> dst(1 << 18);
  std::vector<CopyTask> tasks;
  Index at = 0;
  while (at < (1 << 16)) {
    StridedCopy copy;
    copy.run_bytes = *rc::gen::element<Index>(0, 2, 40, 64, 200, 1000, 1500, 8192, 20000);
    copy.src_offset = *rc::gen::inRange<Index>(0, 1000);
    copy.dst_offset = at;
    const Index count = *rc::gen::inRange<Index>(1, 4);
    copy.num_loops = count == 1 ? 0 : 1;
    if (count > 1) copy.loops[0] = {count, copy.run_bytes + 5, copy.run_bytes + 3};
    at += count * (copy.run_bytes + 3);
    tasks.push_back({copy, src.data(), dst.data()});
  }
  expect_copies(tasks, dst);
}

TEST(Copy, empty_copies_write_nothing) {
  auto dst = random_bytes(64, 1);
  const auto before = dst;
  for (CopyHint hint : {CopyHint::streaming, CopyHint::cached}) {
    run_copies({}, hint);
    run_copy({}, dst.data(), dst.data(), hint);
    copy_bytes(nullptr, nullptr, 0, hint);
  }
  EXPECT_EQ(dst, before);
}

}  // namespace
}  // namespace reshard
