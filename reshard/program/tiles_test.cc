// SPDX-License-Identifier: Apache-2.0
// Protects: tiles of copies and of gets write every byte once and what the copies say, in steps
// that do not disturb each other; gets keep to their staging.
#include "reshard/program/tiles.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstring>

namespace reshard::program {
namespace {

constexpr Index kGap = 3;  ///< bytes between the copies of a buffer.

/// One random copy whose destination is packed. Its last source byte is before the end that is
/// returned.
std::pair<StridedCopy, Index> random_copy(Index src, Index dst) {
  StridedCopy copy;
  copy.src_offset = src;
  copy.dst_offset = dst;
  copy.run_bytes = *rc::gen::element<Index>(1, 8, 64, 192, 5000);
  copy.num_loops = *rc::gen::inRange(0, 3);
  Index src_inner = copy.run_bytes, dst_inner = copy.run_bytes;
  for (int i = copy.num_loops - 1; i >= 0; --i) {
    auto& loop = copy.loops[static_cast<std::size_t>(i)];
    loop.count = *rc::gen::inRange<Index>(1, 30);
    loop.src_stride = src_inner + *rc::gen::element<Index>(0, 1, 64, 20'000);
    loop.dst_stride = dst_inner + *rc::gen::element<Index>(0, 5);
    src_inner = loop.src_stride * (loop.count - 1) + src_inner;
    dst_inner = loop.dst_stride * (loop.count - 1) + dst_inner;
  }
  return {copy, src + src_inner};
}

Index end_of(const StridedCopy& copy) {
  Index end = 0;
  for_each_run(copy, [&](Index, Index dst, Index bytes) { end = std::max(end, dst + bytes); });
  return end;
}

/// Copies between two sources and one target, and their memory.
struct CopyJob {
  Builder builder{Rank(0), 7};
  std::vector<ProgramPiece> pieces;
  std::vector<std::vector<std::uint8_t>> memory;  ///< by buffer; set by run().
  Index bytes = 0;

  explicit CopyJob(bool mapped) {
    const Index kMax = Index{1} << 30;
    std::vector<BufferId> sources;
    for (int r = 1; r < 3; ++r)
      sources.push_back(
          builder.tensor(ProgramBuffer::Kind::source, Rank(r), SlotId(0), kMax, mapped));
    const BufferId target = builder.tensor(ProgramBuffer::Kind::target, Rank(0), SlotId(0), kMax);
    Index dst = 0, src[2] = {0, 0};
    for (int n = *rc::gen::inRange(1, 6); n > 0; --n) {
      const auto s = pieces.size() % 2;
      const auto [copy, end] = random_copy(src[s], dst);
      src[s] = end;
      dst = end_of(copy) + kGap;
      pieces.push_back({copy, sources[s], target, {}});
      bytes += copy.bytes();
    }
    ends = {0, 0, src[0], src[1], dst};
  }

  std::vector<Index> ends;  ///< of the buffers.

  /// Memory before the first step.
  void fill(Index staging) {
    ends[0] = staging;
    memory.clear();
    for (std::size_t b = 0; b < ends.size(); ++b) {
      auto& bytes_of = memory.emplace_back(static_cast<std::size_t>(ends[b]), std::uint8_t{0});
      for (std::size_t i = 0; b >= 2 && b < 4 && i < bytes_of.size(); ++i)
        bytes_of[i] = static_cast<std::uint8_t>((i * 37 + i / 251 + b) % 255 + 1);
    }
  }
  void copy(const ProgramPiece& piece) {
    auto& to = memory.at(piece.dst.index());
    const auto& from = memory.at(piece.src.index());
    for_each_run(piece.copy, [&](Index src, Index dst, Index n) {
      RC_ASSERT(src >= 0 && src + n <= static_cast<Index>(from.size()));
      RC_ASSERT(dst >= 0 && dst + n <= static_cast<Index>(to.size()));
      std::memcpy(to.data() + dst, from.data() + src, static_cast<std::size_t>(n));
    });
  }
  /// Runs the program and the pieces, and compares.
  void check(const Program& program) {
    fill(program.staging_bytes);
    for (const ProgramPiece& piece : pieces) copy(piece);
    const auto wanted = memory[4];
    fill(program.staging_bytes);
    Index written = 0;
    for (const ProgramPiece& piece : program.pieces) {
      copy(piece);
      if (piece.dst == BufferId(4)) written += piece.copy.bytes();
    }
    RC_ASSERT(memory[4] == wanted);
    RC_ASSERT(written == bytes);  // each byte once: together they are all
    RC_ASSERT(program.bytes() == bytes && program.delivered() == bytes);
  }
};

RC_GTEST_PROP(Tiles, write_every_byte_once_in_parts_of_about_one_size, ()) {
  CopyJob job(true);
  std::vector<PieceGroup> groups;
  for (std::size_t i = 0; i < job.pieces.size(); ++i) {
    if (i == 0 || *rc::gen::arbitrary<bool>()) groups.push_back({i, i});
    groups.back().end = i + 1;
  }
  const Index size = *rc::gen::element<Index>(1000, 30'000, 1 << 20);
  const StepId begun = job.builder.barrier({});
  add_tiles(job.builder, job.pieces, groups, size, {begun});
  const Program program = std::move(job.builder).finish(0, 0);
  job.check(program);
  for (std::size_t s = 1; s < program.steps.size(); ++s) {
    const auto waits = program.waits_of(StepId(static_cast<std::uint32_t>(s)));
    RC_ASSERT(waits.size() == 1 && waits[0] == begun);
    RC_ASSERT(program.steps[s].bytes > 0);
  }
}

RC_GTEST_PROP(GetTiles, write_what_the_copies_say_with_the_staging_allowed, ()) {
  CopyJob job(false);
  const Index most = *rc::gen::element<Index>(8, 1000, 16 << 10, 512 << 10);
  const StepId begun = job.builder.barrier({});
  const Index staging = add_gets(job.builder, job.pieces, most, {begun});
  RC_ASSERT(staging <= most);
  const Program program = std::move(job.builder).finish(staging, 0);
  job.check(program);
  StepId last_staged(0);
  for (std::size_t s = 1; s < program.steps.size(); ++s) {
    const StepId id(static_cast<std::uint32_t>(s));
    const auto waits = program.waits_of(id);
    RC_ASSERT(std::ranges::find(waits, begun) != waits.end());
    bool staged = false;
    for (const ProgramOp& op : program.ops_of(program.steps[s]))
      for (const ProgramPiece& piece : program.pieces_of(op)) {
        const bool remote = !program.buffers[piece.src.index()].mapped;
        RC_ASSERT(remote == (op.kind == ProgramOp::Kind::get));
        staged |= piece.dst == Builder::kStaging;
      }
    if (!staged) continue;
    RC_ASSERT(std::ranges::find(waits, last_staged) != waits.end());
    last_staged = id;
  }
}

TEST(GetTiles, read_small_tensors_of_one_rank_together) {
  Builder builder(Rank(0), 0);
  std::vector<ProgramPiece> pieces;
  for (const int rank : {1, 2})
    for (int slot = 0; slot < 3; ++slot) {
      StridedCopy copy;
      copy.run_bytes = 4096;
      pieces.push_back(
          {copy,
           builder.tensor(ProgramBuffer::Kind::source, Rank(rank), SlotId(slot), 4096, false),
           builder.tensor(ProgramBuffer::Kind::target, Rank(0), SlotId(3 * rank + slot), 4096),
           {}});
    }
  EXPECT_EQ(add_gets(builder, pieces, 1 << 20, {}), 0);
  const Program program = std::move(builder).finish(0, 0);
  ASSERT_EQ(program.steps.size(), 2);
  for (const ProgramStep& step : program.steps) {
    EXPECT_EQ(step.bytes, 3 * 4096);
    EXPECT_EQ(program.ops_of(step).size(), 1);
  }
}

Move move_of(int src, int dst, Index src_offset, Index dst_stride) {
  Move m{Rank(src), Rank(dst), SlotId(0), SlotId(0), {}, {}};
  m.copy.src_offset = src_offset;
  m.copy.run_bytes = 16;
  m.copy.num_loops = 1;
  m.copy.loops[0] = {4, 16, dst_stride};
  return m;
}

TEST(GroupMoves, puts_slices_of_one_source_together_and_rows_that_are_gathered_by_destination) {
  std::vector<Move> moves = {move_of(1, 0, 64, 16), move_of(0, 0, 64, 16), move_of(1, 1, 0, 16),
                             move_of(0, 1, 0, 64),  move_of(1, 1, 64, 64), move_of(0, 1, 0, 16)};
  const std::vector<Move> before = moves;
  const auto groups = group_moves(moves);
  EXPECT_TRUE(std::ranges::is_permutation(moves, before));
  ASSERT_EQ(groups.size(), 3);
  std::size_t at = 0;
  for (const PieceGroup& group : groups) {
    EXPECT_EQ(group.first, at);
    EXPECT_EQ(group.end, at + 2);
    at = group.end;
  }
  EXPECT_EQ(moves[0].src, Rank(0));
  EXPECT_EQ(moves[1].src, Rank(0));
  EXPECT_EQ(moves[0].copy.src_offset, 0);
  EXPECT_EQ(moves[2].src, Rank(1));
  EXPECT_EQ(moves[3].src, Rank(1));
  EXPECT_EQ(moves[4].dst, Rank(1));
  EXPECT_EQ(moves[5].copy.loops[0].dst_stride, 64);
}

TEST(ProgramBuilder, joins_ops_of_one_kind_sorts_waits_and_knows_the_last_steps) {
  Builder b(Rank(0), 7);
  const BufferId from = b.tensor(ProgramBuffer::Kind::source, Rank(1), SlotId(3), 100);
  EXPECT_EQ(b.tensor(ProgramBuffer::Kind::source, Rank(1), SlotId(3), 100), from);
  const BufferId to = b.tensor(ProgramBuffer::Kind::target, Rank(0), SlotId(3), 100);
  EXPECT_NE(from, to);
  StridedCopy copy;
  copy.run_bytes = 10;
  const StepId barrier = b.barrier({});
  b.copy({copy, from, to, {}}, true);
  b.copy({copy, from, to, {}}, true);
  b.copy({copy, from, to, {}}, false);
  b.copy({StridedCopy{}, from, to, {}}, false);  // nothing
  const StepId first = b.tile(30, 30, {barrier});
  const StepId second = b.tile(0, 0, {first, barrier, first});
  EXPECT_EQ(b.last_steps(), std::vector<StepId>{second});
  const Program program = std::move(b).finish(64, 0);
  EXPECT_EQ(program.ops.size(), 2);
  EXPECT_EQ(program.pieces.size(), 3);
  EXPECT_EQ(program.ops_of(program.steps[2]).size(), 0);
  const auto waits = program.waits_of(second);
  EXPECT_EQ(std::vector<StepId>(waits.begin(), waits.end()), (std::vector<StepId>{barrier, first}));
  EXPECT_EQ(program.buffers[Builder::kStaging.index()].bytes, 64);
  EXPECT_EQ(program.bytes(), 30);
}

}  // namespace
}  // namespace reshard::program
