// SPDX-License-Identifier: Apache-2.0
#include "reshard/transform/copy.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "reshard/transform/convert.h"
#include "reshard/transform/kernels/copy_kernels.h"
#include "reshard/transform/kernels/copy_tiny.h"
#include "reshard/transform/simd.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace reshard {
namespace {

using kernels::CopyKernels;
using kernels::RowTask;
using Loop = StridedCopy::Loop;

/// The largest number of tasks that are copied together, row by row.
constexpr int kMaxGroup = 16;
/// How far ahead to prefetch over rows with gaps. Bytes copied.
constexpr Index kFarAhead = 32768;

/// The streaming kernels, or null if there are none.
const CopyKernels* copy_kernels() {
  switch (simd_level()) {
    case SimdLevel::avx512: return &kernels::avx512_copy_kernels();
    case SimdLevel::avx2: return &kernels::avx2_copy_kernels();
    case SimdLevel::neon: return &kernels::neon_copy_kernels();
    case SimdLevel::portable: return nullptr;
  }
  return nullptr;
}

const Loop& inner_loop(const StridedCopy& copy) {
  return copy.loops[static_cast<std::size_t>(copy.num_loops - 1)];
}

/// The copy without its innermost loop.
StridedCopy outer_loops(StridedCopy copy) {
  --copy.num_loops;
  return copy;
}

void copy_plain(const StridedCopy& copy, const std::byte* src, std::byte* dst) {
  for_each_run(copy, [&](Index s, Index d, Index n) {
    std::memcpy(dst + d, src + s, static_cast<std::size_t>(n));
  });
}

/// Adds long runs to the batch; runs that are adjacent in the destination share the line between
/// them.
void add_long(const CopyKernels& k, kernels::PieceBatch& batch, const StridedCopy& copy,
              const std::byte* src, std::byte* dst) {
  const auto bytes = static_cast<std::size_t>(copy.run_bytes);
  if (copy.num_loops == 0) {
    k.add_run(batch, {.src = src + copy.src_offset, .dst = dst + copy.dst_offset, .bytes = bytes});
    return;
  }
  const Loop loop = inner_loop(copy);
  const bool joined = loop.dst_stride == copy.run_bytes;
  for_each_run(outer_loops(copy), [&](Index s, Index d, Index) {
    for (Index i = 0; i < loop.count; ++i) {
      const std::byte* const from = src + s + i * loop.src_stride;
      k.add_run(batch, {.src = from,
                        .dst = dst + d + i * loop.dst_stride,
                        .bytes = bytes,
                        .next = joined && i + 1 < loop.count ? from + loop.src_stride : nullptr,
                        .head_done = joined && i > 0});
    }
  });
}

/// Tasks with equal loop counts and adjacent runs. `near`: the source is read (almost) in order.
struct ProcessGroup {
  RowTask rows[kMaxGroup];
  int size = 0;
  bool near = false;
};

/// True if b's runs begin where a's end in the source, in every row.
bool side_by_side_in_source(const CopyTask& a, const CopyTask& b) {
  for (int i = 0; i < a.copy.num_loops; ++i) {
    const auto k = static_cast<std::size_t>(i);
    if (a.copy.loops[k].src_stride != b.copy.loops[k].src_stride) return false;
  }
  return a.src + a.copy.src_offset + a.copy.run_bytes == b.src + b.copy.src_offset;
}

bool side_by_side_in_destination(const CopyTask& a, const CopyTask& b) {
  for (int i = 0; i < a.copy.num_loops; ++i) {
    const auto k = static_cast<std::size_t>(i);
    if (a.copy.loops[k].dst_stride != b.copy.loops[k].dst_stride) return false;
  }
  return a.dst + a.copy.dst_offset + a.copy.run_bytes == b.dst + b.copy.dst_offset;
}

bool may_follow(const CopyTask& a, const CopyTask& b) {
  if (a.copy.num_loops == 0 || a.copy.num_loops != b.copy.num_loops) return false;
  if (b.conversion.converts()) return false;
  for (const CopyTask* t : {&a, &b})
    if (t->copy.run_bytes < kernels::kTinyRun ||
        t->copy.run_bytes >= kernels::copy_tuning().longest_row)
      return false;
  for (int i = 0; i < a.copy.num_loops; ++i) {
    const auto k = static_cast<std::size_t>(i);
    if (a.copy.loops[k].count != b.copy.loops[k].count) return false;
  }
  return side_by_side_in_source(a, b) || side_by_side_in_destination(a, b);
}

/// Links each task to the one whose runs follow its own in the destination.
void link_destinations(std::span<const CopyTask> tasks, ProcessGroup& group) {
  const auto link = [&](std::size_t from, std::size_t to, int row) {
    group.rows[from].next = static_cast<int>(to);
    group.rows[from].next_row = row;
    group.rows[to].has_prev = true;
    group.rows[to].prev_row = row;
  };
  for (std::size_t i = 0, first = 0; i < tasks.size(); ++i) {
    const bool more = i + 1 < tasks.size() && side_by_side_in_destination(tasks[i], tasks[i + 1]);
    if (more) {
      link(i, i + 1, 0);
      continue;
    }
    const std::byte* const end = tasks[i].dst + tasks[i].copy.dst_offset + tasks[i].copy.run_bytes;
    const std::byte* const next_row =
        tasks[first].dst + tasks[first].copy.dst_offset + inner_loop(tasks[first].copy).dst_stride;
    if (end == next_row) link(i, first, 1);
    first = i + 1;
  }
}

/// Bytes that the group reads from each row of its first task's source.
Index read_together(std::span<const CopyTask> tasks) {
  Index bytes = tasks[0].copy.run_bytes;
  for (std::size_t i = 1; i < tasks.size() && side_by_side_in_source(tasks[i - 1], tasks[i]); ++i)
    bytes += tasks[i].copy.run_bytes;
  return bytes;
}

/// True if the group reads its source rows (almost) in order.
bool read_nearly_all(std::span<const CopyTask> tasks) {
  const Index together = read_together(tasks);
  return std::abs(inner_loop(tasks[0].copy).src_stride) <= together + together / 2;
}

ProcessGroup make_group(std::span<const CopyTask> tasks) {
  ProcessGroup group;
  group.size = static_cast<int>(tasks.size());
  const Loop first = inner_loop(tasks[0].copy);
  const Index together = read_together(tasks);
  group.near = read_nearly_all(tasks);
  const Index rows_ahead = std::min(first.count / 4, kFarAhead / together);
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    const Loop loop = inner_loop(tasks[i].copy);
    group.rows[i] = {
        .src = nullptr,
        .dst = nullptr,
        .bytes = static_cast<std::size_t>(tasks[i].copy.run_bytes),
        .src_stride = loop.src_stride,
        .dst_stride = loop.dst_stride,
        .ahead = group.near ? kernels::copy_tuning().near_ahead : rows_ahead * loop.src_stride,
        .ahead_until = group.near ? loop.count : loop.count - rows_ahead};
  }
  link_destinations(tasks, group);
  return group;
}

/// Sets the beginning of the group's rows for these indices of the outer loops.
void place(std::span<const CopyTask> tasks, const std::array<Index, kMaxDims>& at,
           ProcessGroup& group) {
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    const StridedCopy& copy = tasks[i].copy;
    group.rows[i].src = tasks[i].src + copy.src_offset;
    group.rows[i].dst = tasks[i].dst + copy.dst_offset;
    for (int l = 0; l + 1 < copy.num_loops; ++l) {
      const auto n = static_cast<std::size_t>(l);
      group.rows[i].src += at[n] * copy.loops[n].src_stride;
      group.rows[i].dst += at[n] * copy.loops[n].dst_stride;
    }
  }
}

void copy_rows(const CopyKernels& k, std::span<const CopyTask> tasks) {
  ProcessGroup group = make_group(tasks);
  const StridedCopy& first = tasks[0].copy;
  std::array<Index, kMaxDims> at{};
  while (true) {
    place(tasks, at, group);
    k.rows(group.rows, group.size, inner_loop(first).count, group.near);
    int l = first.num_loops - 2;
    for (; l >= 0; --l) {
      const auto n = static_cast<std::size_t>(l);
      if (++at[n] < first.loops[n].count) break;
      at[n] = 0;
    }
    if (l < 0) return;
  }
}

/// The number of tasks, from the first on, to copy together row by row; 0 if the first is better
/// cut into pieces by itself.
std::size_t group_size(std::span<const CopyTask> tasks) {
  std::size_t n = 1;
  while (n < tasks.size() && n < kMaxGroup && may_follow(tasks[n - 1], tasks[n])) ++n;
  const StridedCopy& copy = tasks[0].copy;
  if (copy.num_loops == 0) return 0;
  if (copy.run_bytes < Index{kernels::kLongRun}) return n;
  return copy.run_bytes < kernels::copy_tuning().longest_row && read_nearly_all(tasks.first(n)) ? n
                                                                                                : 0;
}

void run_streaming(const CopyKernels& k, std::span<const CopyTask> tasks) {
  kernels::PieceBatch batch;
  while (!tasks.empty()) {
    const CopyTask& t = tasks[0];
    std::size_t done = 1;
    if (t.conversion.converts()) {
      run_conversion(t.copy, t.conversion, t.src, t.dst, CopyHint::streaming);
    } else if (t.copy.run_bytes >= kernels::kTinyRun && t.copy.runs() > 0) {
      const std::size_t group = group_size(tasks);
      if (group == 0) {
        add_long(k, batch, t.copy, t.src, t.dst);
      } else {
        copy_rows(k, tasks.first(group));
        done = group;
      }
    } else if (t.copy.bytes() > 0) {
      kernels::copy_tiny(t.copy, t.src, t.dst, CopyHint::streaming);
    }
    tasks = tasks.subspan(done);
  }
  k.flush(batch);
}

}  // namespace

namespace kernels {

const CopyTuning& copy_tuning() {
  static constexpr CopyTuning kSeveral{.pieces = kPieces, .longest_row = 4096, .near_ahead = 2048};
  static constexpr CopyTuning kInOrder{.pieces = 1, .longest_row = 65536, .near_ahead = 0};
  return reads_best_in_order() ? kInOrder : kSeveral;
}

}  // namespace kernels

void copy_fence() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

void copy_bytes(std::byte* dst, const std::byte* src, Index n, CopyHint hint) {
  const CopyKernels* const k = hint == CopyHint::streaming ? copy_kernels() : nullptr;
  if (n == 0) return;
  if (k == nullptr) {
    std::memcpy(dst, src, static_cast<std::size_t>(n));
    return;
  }
  kernels::PieceBatch batch;
  k->add_run(batch, {.src = src, .dst = dst, .bytes = static_cast<std::size_t>(n)});
  k->flush(batch);
}

void run_copy(const StridedCopy& copy, const std::byte* src, std::byte* dst, CopyHint hint) {
  const CopyTask task{copy, src, dst};
  run_copies({&task, 1}, hint);
}

void run_copies(std::span<const CopyTask> tasks, CopyHint hint) {
  const CopyKernels* const k = hint == CopyHint::streaming ? copy_kernels() : nullptr;
  if (k != nullptr) return run_streaming(*k, tasks);
  for (const CopyTask& t : tasks) {
    if (t.conversion.converts()) {
      run_conversion(t.copy, t.conversion, t.src, t.dst, hint);
    } else if (t.copy.run_bytes > 0 && t.copy.run_bytes < kernels::kTinyRun) {
      if (t.copy.runs() > 0) kernels::copy_tiny(t.copy, t.src, t.dst, hint);
    } else {
      copy_plain(t.copy, t.src, t.dst);
    }
  }
}

}  // namespace reshard
