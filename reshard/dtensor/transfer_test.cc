// SPDX-License-Identifier: Apache-2.0
// Protects: a transfer puts every element where the target's mesh and placements say, and wrong
// arguments of one rank are an error on all.
#include "reshard/dtensor/transfer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstring>
#include <numeric>

#include "reshard/cuda/gpu_testutil.h"
#include "reshard/cuda/memory.h"
#include "reshard/transport/inproc/inproc.h"
#include "reshard/transport/testing/conformance_ranks_testutil.h"

namespace reshard::dtensor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const Placement kReplicate{};
Placement shard(int dim) { return {Placement::Kind::shard, dim, 1}; }

/// torch.chunk: part `at` of `parts`.
std::vector<Index> chunk(const std::vector<Index>& of, Index parts, Index at) {
  const auto size = static_cast<Index>(of.size());
  const Index most = (size + parts - 1) / parts;
  const Index begin = std::min(size, at * most), end = std::min(size, begin + most);
  return {of.begin() + begin, of.begin() + end};
}

/// The indices of a dimension that a rank holds, by torch's rules, element by element.
std::vector<Index> held(const TensorSide& side, std::size_t position, int dim, Index extent) {
  std::vector<Index> indices(static_cast<std::size_t>(extent));
  std::iota(indices.begin(), indices.end(), 0);
  for (std::size_t k = 0; k < side.placements.size(); ++k) {
    const Placement& p = side.placements[k];
    if (p.kind == Placement::Kind::replicate || p.dim != dim) continue;
    auto rest = static_cast<Index>(position);
    for (std::size_t later = side.mesh.shape.size() - 1; later > k; --later)
      rest /= side.mesh.shape[later];
    std::vector<Index> mine;
    for (Index j = 0; j < p.split_factor; ++j)
      for (const Index i :
           chunk(chunk(indices, p.split_factor, j), side.mesh.shape[k], rest % side.mesh.shape[k]))
        mine.push_back(i);
    indices = std::move(mine);
  }
  return indices;
}

/// A rank's shard of a tensor whose elements are their own positions; none: not in the mesh.
std::optional<std::vector<float>> expected(const Dims& shape, const TensorSide& side, Rank rank) {
  const auto& ranks = side.mesh.ranks;
  const auto at = std::find(ranks.begin(), ranks.end(), rank);
  if (at == ranks.end()) return std::nullopt;
  const auto position = static_cast<std::size_t>(at - ranks.begin());
  std::vector<Index> flat{0};
  for (int d = 0; d < shape.size(); ++d) {
    std::vector<Index> next;
    for (const Index head : flat)
      for (const Index i : held(side, position, d, shape[d])) next.push_back(head * shape[d] + i);
    flat = std::move(next);
  }
  return std::vector<float>(flat.begin(), flat.end());
}

std::span<std::byte> bytes(std::vector<float>& values) {
  return std::as_writable_bytes(std::span(values));
}

void on_all(int ranks, const RankBody& body) {
  EXPECT_EQ(outcome(run_group_as_threads<InprocGroup>(ranks, body)), "");
}

/// Runs the transfers on this rank with the oracle's values; "" or what is wrong.
std::string wrong_after(std::vector<TensorTransfer> transfers, RankEnds& ends) {
  std::vector<std::vector<float>> sources(transfers.size()), targets(transfers.size()),
      want = targets;
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    TensorTransfer& t = transfers[i];
    sources[i] = expected(t.shape, t.source, ends.rank()).value_or(std::vector<float>{});
    want[i] = expected(t.shape, t.target, ends.rank()).value_or(std::vector<float>{});
    targets[i].resize(want[i].size(), -1);
    t.source.local = bytes(sources[i]);
    t.target.local = bytes(targets[i]);
  }
  const auto report = xferdtensors(transfers, *ends.transport, *ends.control);
  if (!report) return report.error().message;
  return targets == want ? "" : "rank " + std::to_string(ends.rank().value()) + " has other values";
}

/// A side over some of the ranks 0 to 5, in any order.
TensorSide any_side(int dims) {
  TensorSide side;
  side.dtype = DType::f32;
  static const std::vector<std::vector<Index>> kShapes{{1},    {2},    {3},    {4},
                                                       {2, 2}, {3, 2}, {1, 3}, {2, 1, 3}};
  side.mesh.shape = *rc::gen::elementOf(kShapes);
  std::vector<int> ranks{0, 1, 2, 3, 4, 5};
  for (std::size_t i = ranks.size(); i > 1; --i)
    std::swap(ranks[i - 1], ranks[*rc::gen::inRange<std::size_t>(0, i)]);
  Index size = 1;
  for (const Index n : side.mesh.shape) size *= n;
  for (Index i = 0; i < size; ++i) side.mesh.ranks.emplace_back(ranks[static_cast<std::size_t>(i)]);
  for (std::size_t i = 0; i < side.mesh.shape.size(); ++i) {
    const int kind = *rc::gen::inRange(0, 4);
    Placement p = kind == 0 ? kReplicate : shard(*rc::gen::inRange(0, dims));
    if (kind == 3) p = {Placement::Kind::strided_shard, p.dim, *rc::gen::inRange<Index>(1, 4)};
    side.placements.push_back(p);
  }
  return side;
}

TensorTransfer any_transfer() {
  TensorTransfer t;
  const int dims = *rc::gen::inRange(1, 4);
  for (int d = 0; d < dims; ++d) t.shape.push_back(*rc::gen::inRange<Index>(0, 8));
  t.source = any_side(dims);
  t.target = any_side(dims);
  return t;
}

RC_GTEST_PROP(Transfers, put_every_element_in_place, ()) {
  std::vector<TensorTransfer> transfers;
  const int count = *rc::gen::inRange(1, 4);
  for (int i = 0; i < count; ++i) transfers.push_back(any_transfer());
  on_all(6, [&](RankEnds& ends) { EXPECT_EQ(wrong_after(transfers, ends), ""); });
  RC_ASSERT(!::testing::Test::HasFailure());
}

RC_GTEST_PROP(Transfers, say_the_shape_of_every_shard, ()) {
  const TensorTransfer t = any_transfer();
  for (std::size_t i = 0; i < t.source.mesh.ranks.size(); ++i) {
    const auto shape = local_shape(t.shape, t.source, t.source.mesh.ranks[i]);
    RC_ASSERT(shape.has_value());
    for (int d = 0; d < t.shape.size(); ++d)
      RC_ASSERT((*shape)[d] == static_cast<Index>(held(t.source, i, d, t.shape[d]).size()));
  }
}

/// Rows over ranks 0 and 1, to columns over ranks 2 and 3; rank 4 has no part.
TensorTransfer rows_to_columns() {
  TensorTransfer t{.shape = {4, 6}};
  t.source = {mesh_of({2}), {shard(0)}, DType::f32};
  t.target = {mesh_of({2}, Rank(2)), {shard(1)}, DType::f32};
  return t;
}

TEST(TensorTransfer, of_a_prepared_one_brings_what_the_source_holds_at_each_run) {
  on_all(5, [](RankEnds& ends) {
    TensorTransfer t = rows_to_columns();
    auto source = expected(t.shape, t.source, ends.rank()).value_or(std::vector<float>{});
    std::vector<float> target(ends.rank().value() == 2 || ends.rank().value() == 3 ? 12 : 0);
    t.source.local = bytes(source);
    t.target.local = bytes(target);
    auto prepared = PreparedTransfers::prepare(std::span(&t, 1), *ends.transport, *ends.control);
    ASSERT_EQ(outcome(prepared), "");
    auto want = expected(t.shape, t.target, ends.rank()).value_or(std::vector<float>{});
    for (int step = 0; step < 3; ++step) {
      ASSERT_EQ(outcome(prepared->run()), "");
      EXPECT_EQ(target, want);
      for (float& v : source) v += 1000;
      for (float& v : want) v += 1000;
    }
    EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
  });
}

TEST(TensorTransfer, converts_to_the_dtype_of_the_target) {
  on_all(2, [](RankEnds& ends) {
    TensorTransfer t{.shape = {2, 2}};
    t.source = {mesh_of({1}), {kReplicate}, DType::f32};
    t.target = {mesh_of({1}, Rank(1)), {kReplicate}, DType::bf16};
    std::vector<float> source{1, -2, 0.5F, 3};
    std::vector<std::uint16_t> target(4);
    if (ends.rank() == Rank(0)) t.source.local = bytes(source);
    if (ends.rank() == Rank(1)) t.target.local = std::as_writable_bytes(std::span(target));
    ASSERT_EQ(outcome(xferdtensor(t, *ends.transport, *ends.control)), "");
    const std::vector<std::uint16_t> want{0x3f80, 0xc000, 0x3f00, 0x4040};
    if (ends.rank() == Rank(1)) {
      EXPECT_EQ(target, want);
    }
  });
}

TEST(TensorTransfer, moves_tensors_of_a_gpu) {
  on_all(4, [](RankEnds& ends) {
    const auto gpu = cuda::gpu_under_test();
    TensorTransfer t = rows_to_columns();
    const auto source = expected(t.shape, t.source, ends.rank());
    const auto want = expected(t.shape, t.target, ends.rank());
    const cuda::Buffer memory = cuda::Buffer::on_device(gpu, 48).value();
    const std::span<std::byte> on_gpu(memory.data(), 48);
    if (source) {
      cuda::write_to_gpu(gpu, memory.data(), std::as_bytes(std::span(*source)));
      t.source.local = on_gpu;
      t.source.device = gpu;
    } else {
      t.target.local = on_gpu;
      t.target.device = gpu;
    }
    ASSERT_EQ(outcome(xferdtensor(t, *ends.transport, *ends.control)), "");
    if (!want) return;
    const auto bytes_there = cuda::read_from_gpu(gpu, memory.data(), 48);
    EXPECT_EQ(std::memcmp(bytes_there.data(), want->data(), 48), 0);
  });
}

TEST(TensorTransfer, takes_one_device_for_the_tensors_of_a_side) {
  on_all(1, [](RankEnds& ends) {
    const auto gpu = cuda::gpu_under_test();
    const cuda::Buffer memory = cuda::Buffer::on_device(gpu, 16).value();
    std::vector<float> host(4), target(8);
    std::vector<TensorTransfer> transfers(2);
    for (std::size_t i = 0; i < 2; ++i) {
      transfers[i].shape = {4};
      transfers[i].source = {mesh_of({1}), {kReplicate}, DType::f32, bytes(host)};
      transfers[i].target = {
          mesh_of({1}), {kReplicate}, DType::f32, bytes(target).subspan(16 * i, 16)};
    }
    transfers[1].source.local = {memory.data(), 16};
    transfers[1].source.device = gpu;
    EXPECT_THAT(outcome(xferdtensors(transfers, *ends.transport, *ends.control)),
                HasSubstr("tensor 1: source is on GPU 0, but that of tensor 0 on the host"));
  });
}

/// The error of a transfer whose arguments `spoil` changes on some ranks, on every rank; then a
/// transfer with the right ones works.
void expect_refused(const std::function<void(TensorTransfer&, Rank)>& spoil,
                    const std::string& why) {
  on_all(5, [&](RankEnds& ends) {
    TensorTransfer t = rows_to_columns();
    std::vector<float> source(ends.rank().value() < 2 ? 12 : 0);
    std::vector<float> target(ends.rank().value() == 2 || ends.rank().value() == 3 ? 12 : 0);
    t.source.local = bytes(source);
    t.target.local = bytes(target);
    spoil(t, ends.rank());
    const auto refused = xferdtensor(t, *ends.transport, *ends.control);
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, Code::invalid_argument);
    EXPECT_THAT(refused.error().message, HasSubstr(why));
    EXPECT_EQ(wrong_after({rows_to_columns()}, ends), "") << "after: " << why;
  });
}

TEST(TensorTransfer, says_on_all_ranks_what_is_wrong_on_one) {
  expect_refused(
      [](TensorTransfer& t, Rank me) {
        if (me == Rank(1)) t.source.local = t.source.local.first(40);
      },
      "rank 1: local tensor 'tensor 0' of rank 1 has 48 bytes in source, not 40");
  expect_refused(
      [](TensorTransfer& t, Rank me) {
        if (me == Rank(3)) t.target.local = {};
      },
      "rank 3: local tensor 'tensor 0' of rank 3 has 48 bytes in target, not 0");
  std::vector<float> spare(3);
  expect_refused(
      [&](TensorTransfer& t, Rank me) {
        if (me == Rank(4)) t.target.local = bytes(spare);
      },
      "rank 4: tensor 0: target has 12 bytes of memory on rank 4, which has no shard of it");
  expect_refused(
      [](TensorTransfer& t, Rank me) {
        if (me == Rank(2)) t.source.placements.push_back(shard(0));
      },
      "rank 2: source: tensor 'tensor 0': 2 placements for a mesh of 1 dimensions");
}

TEST(TensorTransfer, says_what_does_not_fit) {
  expect_refused([](TensorTransfer& t, Rank) { t.target.placements = {shard(2)}; },
                 "placement S(2) but the tensor's shape is [4, 6]");
  expect_refused([](TensorTransfer& t, Rank) { t.source.mesh = mesh_of({0}); },
                 "its shape must have 1 to 1048576 ranks");
  expect_refused([](TensorTransfer& t, Rank) { t.source.mesh.ranks = {Rank(1), Rank(1)}; },
                 "rank 1 is listed twice");
  expect_refused([](TensorTransfer& t, Rank) { t.source.mesh = mesh_of({2}, Rank(4)); }, "rank");
}

TEST(MeshInfo, numbers_tensor_parallel_ranks_first) {
  const auto mesh = build_mesh_info(16, Rank(8), {.tp = 2, .ep = 4});
  ASSERT_EQ(outcome(mesh), "");
  EXPECT_THAT(mesh->shape, ElementsAre(1, 2, 4, 2));
  EXPECT_EQ(mesh->ranks.front(), Rank(8));
  const auto experts = get_placements(*mesh, {{"ep", 0}, {"tp", 1}});
  ASSERT_EQ(outcome(experts), "");
  EXPECT_THAT(*experts, ElementsAre(kReplicate, kReplicate, shard(0), shard(1)));
  // Rank 8 + 5 is tensor parallel rank 1 and expert parallel rank 2.
  const Dims shape{8, 6};
  EXPECT_EQ(*local_shape(shape, {*mesh, *experts, DType::f32}, Rank(13)), (Dims{2, 3}));
}

TEST(MeshInfo, refuses_what_does_not_fit) {
  for (const ParallelSizes& sizes : std::vector<ParallelSizes>{{3, 1, 1}, {0, 1, 1}, {4, 4, 2}})
    EXPECT_THAT(outcome(build_mesh_info(16, Rank(0), sizes)), HasSubstr("do not divide 16 ranks"));
  const auto mesh = build_mesh_info(4, Rank(0), {.tp = 2});
  EXPECT_THAT(outcome(get_placements(*mesh, {{"cp", 0}})),
              HasSubstr("the mesh has no dimension 'cp', but pp, dp, ep, tp"));
  EXPECT_THAT(outcome(get_placements(*mesh, {{"tp", 0}, {"tp", 1}})), HasSubstr("named twice"));
}

TEST(TensorTransfer, names_the_ranks_that_say_different_things) {
  on_all(5, [](RankEnds& ends) {
    TensorTransfer t = rows_to_columns();
    if (ends.rank() == Rank(4)) t.target.placements = {shard(0)};
    const std::string wrong = wrong_after({t}, ends);
    EXPECT_THAT(wrong, HasSubstr("rank 4"));
  });
}

}  // namespace
}  // namespace reshard::dtensor
