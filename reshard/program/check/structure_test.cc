// SPDX-License-Identifier: Apache-2.0
// Protects: a program that breaks a rule of its structure is refused with the place and the reason,
// and no compiled program is.
#include "reshard/program/check.h"

#include <gtest/gtest.h>

#include "reshard/program/builder.h"
#include "reshard/program/programs_testutil.h"

namespace reshard::program {
namespace {

/// Rank 1 reads rank 0's memory, and packs and sends what it has to rank 2.
Program small_program() {
  Builder b(Rank(1), 7);
  const BufferId from = b.tensor(ProgramBuffer::Kind::source, Rank(0), SlotId(3), 100, false);
  const BufferId mine = b.tensor(ProgramBuffer::Kind::source, Rank(1), SlotId(3), 100);
  const BufferId to = b.tensor(ProgramBuffer::Kind::target, Rank(1), SlotId(3), 100);
  StridedCopy copy;
  copy.run_bytes = 10;
  copy.num_loops = 1;
  copy.loops[0] = {5, 20, 20};
  const StepId begun = b.barrier({});
  b.get({copy, from, to, {}});
  b.tile(50, 50, {begun});
  copy.src_offset = 10;
  copy.loops[0].dst_stride = 10;
  b.copy({copy, mine, Builder::kStaging, {}}, false);
  const StepId packed = b.tile(0, 0, {});
  const ProgramMessage message{Rank(2), 4, true, {Builder::kStaging, 0}, 50};
  b.exchange(std::span(&message, 1), 50, 0, {packed});
  b.clear({{Builder::kScratch, 0}, 64});
  b.max({{Builder::kScratch, 0}, 4, {Builder::kScratch, 60}});
  b.tile(0, 0, {});
  b.barrier(b.last_steps());
  return std::move(b).finish(64, 64);
}

template <class Change>
void expect_refused(const std::string& why, Change&& change) {
  Program program = small_program();
  change(program);
  const auto checked = check_structure(program);
  ASSERT_FALSE(checked) << why;
  EXPECT_EQ(checked.error().code, Code::corrupt);
  EXPECT_NE(checked.error().message.find(why), std::string::npos) << checked.error().message;
}

constexpr Index kHuge = INT64_MAX;

TEST(CheckStructure, accepts_what_the_builder_makes) {
  const auto checked = check_structure(small_program());
  EXPECT_TRUE(checked) << checked.error().message;
  EXPECT_FALSE(check_structure(Program{}));  // no first_wait
  auto programs = plain_programs();
  for (Program& p : converted_programs()) programs.push_back(std::move(p));
  for (const Program& p : programs)
    EXPECT_TRUE(check_structure(p)) << check_structure(p).error().message;
}

TEST(CheckStructure, refuses_tables_that_do_not_fit) {
  expect_refused("no known kind", [](Program& p) { p.ops[0].kind = ProgramOp::Kind(9); });
  expect_refused("no known kind", [](Program& p) { p.steps[1].kind = ProgramStep::Kind(3); });
  expect_refused("no known kind", [](Program& p) { p.buffers[2].kind = ProgramBuffer::Kind(4); });
  expect_refused("are next", [](Program& p) { p.ops[0].end = 7; });
  expect_refused("are next", [](Program& p) { p.ops[1].first = 0; });
  expect_refused("are next", [](Program& p) { p.steps[1].end = 0xFFFFFFFF; });
  expect_refused("of no step", [](Program& p) { p.ops.push_back(p.ops.back()); });
  expect_refused("of no step", [](Program& p) { p.messages.push_back(p.messages.back()); });
  expect_refused("of no op", [](Program& p) { p.pieces.push_back(p.pieces.back()); });
  expect_refused("first_wait", [](Program& p) { p.first_wait.clear(); });
  expect_refused("first_wait", [](Program& p) { std::swap(p.first_wait[1], p.first_wait[2]); });
  expect_refused("of no messages", [](Program& p) { p.steps[3].first = p.steps[3].end = 0; });
  expect_refused("a barrier has no", [](Program& p) { p.steps[0].end = 1; });
  expect_refused("bytes", [](Program& p) { p.steps[1].bytes = kHuge; });
  expect_refused("delivered", [](Program& p) { p.steps[1].delivered = 51; });
}

TEST(CheckStructure, refuses_what_breaks_law_1) {
  expect_refused("buffer 99 of 5", [](Program& p) { p.pieces[0].dst = BufferId(99); });
  expect_refused("which has 100", [](Program& p) { p.pieces[0].copy.dst_offset = 11; });
  expect_refused("which has 100", [](Program& p) { p.pieces[0].copy.src_offset = -1; });
  expect_refused("which has 100", [](Program& p) { p.pieces[0].copy.loops[0].count = kHuge; });
  expect_refused("which has", [](Program& p) { p.pieces[0].copy.loops[0].src_stride = kHuge; });
  expect_refused("goes nowhere", [](Program& p) { p.pieces[0].copy.loops[0].dst_stride = -20; });
  expect_refused("goes nowhere", [](Program& p) { p.pieces[0].copy.loops[0].count = 0; });
  expect_refused("9 loops", [](Program& p) { p.pieces[0].copy.num_loops = 9; });
  expect_refused("runs of 0", [](Program& p) { p.pieces[0].copy.run_bytes = 0; });
  expect_refused("than its destination has",
                 [](Program& p) { p.pieces[1].copy.loops[0] = {1 << 20, 0, 0}; });
  expect_refused("elements of 3 and 1", [](Program& p) { p.pieces[1].copy.src_width = 3; });
  expect_refused("which has 64", [](Program& p) { p.messages[0].bytes = 65; });
  expect_refused("which has 64", [](Program& p) { p.ranges[0].bytes = 65; });
  expect_refused("of 9223372036854775807 floats", [](Program& p) { p.maxima[0].count = kHuge; });
  expect_refused("which has 64", [](Program& p) { p.maxima[0].to.offset = 61; });
  expect_refused("has 32 of staging", [](Program& p) { p.staging_bytes = 32; });
  expect_refused("which is a source", [](Program& p) { p.pieces[1].dst = BufferId(3); });
  expect_refused("which is not mapped", [](Program& p) { p.pieces[1].src = BufferId(2); });
  expect_refused("which is mapped", [](Program& p) { p.pieces[0].src = BufferId(3); });
  expect_refused("which is not mapped", [](Program& p) { p.buffers[4].mapped = false; });
  expect_refused("not mapped, but", [](Program& p) { p.buffers[0].mapped = false; });
  expect_refused("puts into buffer 4", [](Program& p) {
    p.ops[1].kind = ProgramOp::Kind::put;
    p.pieces[1].dst = BufferId(4);
  });
  expect_refused("is in scratch", [](Program& p) { p.messages[0].at.buffer = BufferId(1); });
  expect_refused("peer is rank 1", [](Program& p) { p.messages[0].peer = Rank(1); });
  expect_refused("the same memory", [](Program& p) { p.buffers.push_back(p.buffers[4]); });
}

TEST(CheckStructure, refuses_what_breaks_law_2) {
  expect_refused("step 1: waits for step 1", [](Program& p) { p.waits[0] = StepId(1); });
  expect_refused("step 1: waits for step 5", [](Program& p) { p.waits[0] = StepId(5); });
  expect_refused("must ascend", [](Program& p) { p.waits.back() = p.waits[p.waits.size() - 2]; });
}

TEST(CheckStructure, refuses_matrices_that_no_kernel_takes) {
  Builder b(Rank(0), 7);
  const BufferId from = b.tensor(ProgramBuffer::Kind::source, Rank(0), SlotId(0), 64 * 64 * 2);
  const BufferId to = b.tensor(ProgramBuffer::Kind::target, Rank(0), SlotId(0), 64 * 64);
  const BufferId scales = b.tensor(ProgramBuffer::Kind::target, Rank(0), SlotId(1), 64 * 2);
  ProgramMatrix m;
  m.rows = m.cols = m.end = 64;
  m.values = {from, 0};
  m.data = {to, 0};
  m.scales = {scales, 0};
  m.values_row = 128;
  m.data_row = 64;
  m.scales_row = 2;
  b.convert(ProgramOp::Kind::quantise, m);
  b.tile(0, 0, {});
  const Program good = std::move(b).finish(0, 0);
  EXPECT_TRUE(check_structure(good)) << check_structure(good).error().message;
  const auto expect = [&](const std::string& why, auto&& change) {
    Program bad = good;
    change(bad.matrices[0]);
    const auto checked = check_structure(bad);
    ASSERT_FALSE(checked) << why;
    EXPECT_NE(checked.error().message.find(why), std::string::npos) << checked.error().message;
  };
  expect("no known dtype", [](ProgramMatrix& x) { x.format.data = DType(77); });
  expect("no floats", [](ProgramMatrix& x) { x.values_dtype = DType::u8; });
  expect("no memory has this size", [](ProgramMatrix& x) { x.rows = x.cols = kHuge; });
  expect("rows [0, 65) of 64", [](ProgramMatrix& x) { x.end = 65; });
  expect("2 bytes at 127 of buffer 4", [](ProgramMatrix& x) {
    x.scales.offset = 127;
    x.end = 1;
  });
  expect("64 bytes, 63 apart", [](ProgramMatrix& x) { x.data_row = 63; });
  expect("values of matrix 0", [](ProgramMatrix& x) { x.values_row = kHuge; });
  expect("which is a source", [](ProgramMatrix& x) { x.data = x.values; });
  expect("not whole blocks", [](ProgramMatrix& x) {
    x.format = *quant_format_from_name("fp8_block");
    x.rows = 500;
    x.end = 60;
  });
}

}  // namespace
}  // namespace reshard::program
