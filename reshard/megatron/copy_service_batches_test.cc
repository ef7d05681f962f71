// SPDX-License-Identifier: Apache-2.0
// Protects: a copy service moves every element of a random batch of views through little staging,
// by programs that obey all laws; transfers that do not match are errors.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>

#include "reshard/megatron/copy_service.h"
#include "reshard/program/check.h"
#include "reshard/program/compile_batch.h"
#include "reshard/transport/inproc/inproc.h"
#include "reshard/transport/testing/conformance_ranks_testutil.h"

namespace reshard::megatron {
namespace {

/// A view of some bytes of its own.
struct ViewedBytes {
  std::vector<std::byte> bytes;
  TensorView view;
};

ViewedBytes contiguous(DType dtype, const Dims& shape) {
  ViewedBytes out;
  out.view = {nullptr, dtype, shape, row_major(shape)};
  out.bytes.resize(static_cast<std::size_t>(num_bytes(out.view)));
  out.view.data = out.bytes.data();
  return out;
}

/// Dimensions in a random order in memory, with random gaps.
ViewedBytes random_view(DType dtype, const Dims& shape) {
  if (*rc::gen::inRange(0, 3) == 0) return contiguous(dtype, shape);
  ViewedBytes out;
  out.view = {nullptr, dtype, shape, shape};
  Index stride = *rc::gen::element<Index>(1, 1, 1, 2);
  std::vector<int> order;
  for (int i = shape.size() - 1; i >= 0; --i) order.push_back(i);
  if (*rc::gen::inRange(0, 4) == 0) std::ranges::reverse(order);
  for (const int i : order) {
    out.view.strides[i] = stride;
    stride *= shape[i] + *rc::gen::inRange<Index>(0, 3);
  }
  out.bytes.resize(static_cast<std::size_t>((stride + 8) * bits(dtype) / 8));
  out.view.data = out.bytes.data() + *rc::gen::element<Index>(0, bits(dtype) / 8);
  return out;
}

std::vector<std::byte> packed(const TensorView& view) {
  ViewedBytes out = contiguous(view.dtype, view.shape);
  EXPECT_EQ(outcome(copy(view, out.view)), "");
  return std::move(out.bytes);
}

struct Transfer {
  Rank src, dst;
  std::int64_t task = 0;
  ViewedBytes from, to;
};

struct RandomBatch {
  int world = *rc::gen::inRange(1, 5);
  Index staging_bytes = *rc::gen::element<Index>(32 << 10, 64 << 10, 1 << 20);
  std::vector<Transfer> transfers;

  RandomBatch() {
    const int n = *rc::gen::inRange(0, 30);
    for (int i = 0; i < n; ++i) {
      const auto dtype = *rc::gen::element(DType::u8, DType::bf16, DType::f32);
      const Index rows = *rc::gen::element<Index>(0, 1, 3, 40, 100);
      const Dims shape{rows, *rc::gen::inRange<Index>(1, 100), *rc::gen::inRange<Index>(1, 6)};
      Transfer t{rank(), rank(), i * 7919 % 101, random_view(dtype, shape),
                 random_view(dtype, shape)};
      for (std::size_t b = 0; b < t.from.bytes.size(); ++b)
        t.from.bytes[b] = static_cast<std::byte>(mix64(b * 64 + static_cast<std::size_t>(i)));
      transfers.push_back(std::move(t));
    }
  }

  Rank rank() const { return Rank(*rc::gen::inRange(0, world)); }

  /// The batch that a service on `me` compiles. Adds the bytes that it must deliver to `delivers`.
  TransferBatch batch_of(Rank me, TargetBytes& delivers) const;
  /// Errors of all ranks' services, which submit everything in different orders.
  std::string run();
};

/// The bytes of a view, counted from its first.
std::vector<Interval> bytes_of_view(const StridedCopy& packing) {
  std::vector<Interval> runs;
  for_each_run(packing,
               [&](Index src, Index, Index bytes) { runs.emplace_back(src, src + bytes); });
  std::ranges::sort(runs, {}, &Interval::begin);
  std::vector<Interval> out;
  for (const Interval run : runs)
    if (!out.empty() && out.back().end() == run.begin()) {
      out.back() = {out.back().begin(), run.end()};
    } else {
      out.push_back(run);
    }
  return out;
}

TransferBatch RandomBatch::batch_of(Rank me, TargetBytes& delivers) const {
  TransferBatch out;
  std::vector<const Transfer*> written;
  for (const Transfer& t : transfers) {
    const auto id = static_cast<std::uint64_t>(t.task);
    if (t.src == t.dst) continue;
    if (t.src == me) out.transfers.push_back({t.dst, id, true, *packing_of(t.from.view)});
    if (t.src == me) written.push_back(nullptr);
    if (t.dst == me) out.transfers.push_back({t.src, id, false, *packing_of(t.to.view)});
    if (t.dst == me) written.push_back(&t);
  }
  for (const Transfer& t : transfers) {
    if (t.src != me || t.dst != me) continue;
    out.copies.push_back(*copy_between(t.from.view, t.to.view));
    written.push_back(&t);
  }
  for (std::size_t i = 0; i < written.size(); ++i)
    if (written[i] != nullptr && written[i]->to.view.num_elements() > 0)
      delivers[{me, SlotId(static_cast<int>(i))}] = bytes_of_view(*packing_of(written[i]->to.view));
  return out;
}

std::string RandomBatch::run() {
  std::vector<std::string> said(static_cast<std::size_t>(world));
  RankRefitOptions options;
  options.staging_bytes = staging_bytes;
  options.threads = 2;
  const auto ended = run_group_as_threads<InprocGroup>(world, [&](RankEnds& ends) {
    TransportCopyService service(*ends.transport, *ends.control, 60, options);
    const Rank me = ends.rank();
    for (const Transfer& t : transfers)
      if (t.src == me) {
        EXPECT_TRUE(service.submit_send(t.from.view, t.dst, TaskId{t.task}));
      }
    for (auto t = transfers.rbegin(); t != transfers.rend(); ++t)
      if (t->dst == me) {
        EXPECT_TRUE(service.submit_recv(t->to.view, t->src, TaskId{t->task}));
      }
    said[me.index()] = outcome(service.run());
    EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
  });
  std::string all = outcome(ended);
  for (const std::string& one : said) all += one;
  return all;
}

RC_GTEST_PROP(CopyServiceBatches, programs_obey_their_laws, ()) {
  const RandomBatch random;
  int round_bits = *rc::gen::element(-1, 63);
  for (int r = 0; r < random.world; ++r) {
    TargetBytes delivers;
    const TransferBatch batch = random.batch_of(Rank(r), delivers);
    const auto asks = compile_batch(Rank(r), random.world, batch, random.staging_bytes, round_bits);
    RC_ASSERT(outcome(asks) == "");
    round_bits = std::min(round_bits, asks->round_bits);
  }
  std::vector<Program> programs;
  for (int r = 0; r < random.world; ++r) {
    TargetBytes delivers;
    const TransferBatch batch = random.batch_of(Rank(r), delivers);
    auto program = compile_batch(Rank(r), random.world, batch, random.staging_bytes, round_bits);
    RC_ASSERT(outcome(program) == "");
    ProgramExpectations expected;
    expected.delivers = &delivers;
    expected.cap = random.staging_bytes;
    RC_ASSERT(outcome(check_program(*program, expected)) == "");
    programs.push_back(*std::move(program));
  }
  RC_ASSERT(outcome(check_programs(programs)) == "");
}

RC_GTEST_PROP(CopyServiceBatches, put_every_element_in_place, ()) {
  RandomBatch random;
  RC_ASSERT(random.run() == "");
  for (const Transfer& t : random.transfers) {
    const bool same = packed(t.to.view) == packed(t.from.view);
    RC_ASSERT(same);
  }
}

/// Whether both runs of a transfer with different numbers of bytes on its sides fail.
bool both_fail(Index sent, Index received) {
  std::vector<int> failed(2, 0);
  RankRefitOptions options;
  options.staging_bytes = Index{32} << 10;
  const auto ended = run_group_as_threads<InprocGroup>(2, [&](RankEnds& ends) {
    TransportCopyService service(*ends.transport, *ends.control, 0.1, options);
    const bool sends = ends.rank() == Rank(0);
    const ViewedBytes mine = contiguous(DType::u8, {sends ? sent : received});
    const Rank peer(sends ? 1 : 0);
    EXPECT_TRUE(sends ? service.submit_send(mine.view, peer, TaskId{5})
                      : service.submit_recv(mine.view, peer, TaskId{5}));
    failed[ends.rank().index()] = service.run() ? 0 : 1;
    ends.control->abort("the test is over");
  });
  return failed == std::vector{1, 1};
}

TEST(CopyServiceBatches, tensors_of_different_sizes_never_match) {
  // Messages of at most 4096 bytes.
  for (const auto& [sent, received] : std::map<Index, Index>{
           {100, 99}, {4096, 8192}, {8192, 4097}, {12288, 4096}, {10000, 10001}}) {
    EXPECT_TRUE(both_fail(sent, received)) << sent << " bytes into " << received;
    EXPECT_TRUE(both_fail(received, sent)) << received << " bytes into " << sent;
  }
}

/// The error of a rank that sends a view to itself, or to a rank that never receives.
std::string refusal(const TensorView& view, Rank to, const RankRefitOptions& options = {}) {
  std::string said;
  const auto ended = run_group_as_threads<InprocGroup>(2, [&](RankEnds& ends) {
    if (ends.rank() != Rank(0)) return;
    TransportCopyService service(*ends.transport, *ends.control, 60, options);
    EXPECT_TRUE(service.submit_send(view, to, TaskId{1}));
    if (to == Rank(0)) {
      EXPECT_TRUE(service.submit_recv(view, to, TaskId{1}));
    }
    said = outcome(service.run());
  });
  return said;
}

TEST(CopyServiceBatches, refuse_views_that_no_memory_has) {
  const ViewedBytes some = contiguous(DType::f32, {4, 4});
  TensorView view = some.view;
  view.strides = {4, -1};
  EXPECT_EQ(refusal(view, Rank(1)),
            "invalid_argument: copy service inproc: a tensor for rank 1: strides [4, -1] of shape "
            "[4, 4] are negative or overflow");
  view.strides = {Index{1} << 62, 1};
  EXPECT_NE(refusal(view, Rank(1)), "");
  view.strides = {0, 0};
  view.shape = {Index{1} << 26, Index{1} << 26};
  EXPECT_EQ(refusal(view, Rank(1)),
            "invalid_argument: a batch needs more than 16777216 messages and copies of at most "
            "1048576 bytes");
}

TEST(CopyServiceBatches, refuse_too_little_staging) {
  const ViewedBytes some = contiguous(DType::f32, {4, 4});
  RankRefitOptions options;
  options.staging_bytes = 32767;
  EXPECT_EQ(refusal(some.view, Rank(0), options),
            "invalid_argument: staging of 32767 bytes is too small; the least is 32768");
}

}  // namespace
}  // namespace reshard::megatron
