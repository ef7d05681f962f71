// SPDX-License-Identifier: Apache-2.0
// Protects: what a program does is said in words as it is, and totals add up to its bytes.
#include "reshard/program/form/describe.h"

#include <gtest/gtest.h>

#include "reshard/program/builder.h"
#include "reshard/program/programs_testutil.h"

namespace reshard {
namespace {

/// Rank 0 reads from rank 1, quantises, packs and sends.
Program small_program() {
  program::Builder out(Rank(0), 7);
  using Memory = ProgramBuffer::Kind;
  const BufferId staging{0}, scratch{1};
  const BufferId theirs = out.tensor(Memory::source, Rank(1), SlotId(0), 4096);
  const BufferId mine = out.tensor(Memory::source, Rank(0), SlotId(1), 4096);
  const BufferId target = out.tensor(Memory::target, Rank(0), SlotId(0), 4096);
  const auto run = [](Index from, Index to, Index bytes) {
    StridedCopy copy;
    copy.src_offset = from;
    copy.dst_offset = to;
    copy.run_bytes = bytes;
    return copy;
  };
  const StepId begun = out.barrier({});
  out.copy({run(0, 0, 1000), theirs, scratch, {}}, false);
  out.copy({run(1000, 1000, 1048), theirs, scratch, {}}, false);
  ProgramMatrix m;
  m.rows = 32;
  m.cols = 64;
  m.end = 16;
  m.format = *quant_format_from_name("mxfp8");
  m.values = {scratch, 0};
  m.data = {target, 0};
  m.scales = {target, 3072};
  m.values_row = 128;
  m.data_row = 64;
  m.scales_row = 2;
  out.convert(ProgramOp::Kind::quantise, m);
  out.tile(2048, 1024, {begun});
  out.copy({run(64, 0, 512), mine, staging, {}}, false);
  const StepId packed = out.tile(512, 0, {});
  const ProgramMessage message{Rank(2), 17, true, {staging, 0}, 512};
  out.exchange({&message, 1}, 512, 0, {packed});
  return std::move(out).finish(512, 2048);
}

TEST(DescribedProgram, says_each_step_in_words) {
  const Program p = small_program();
  std::string text;
  for (std::uint32_t s = 0; s < p.steps.size(); ++s) text += step_text(p, {}, StepId(s));
  EXPECT_EQ(text,
            "step 0  barrier  0 B\n"
            "  waits for all ranks\n"
            "step 1  tile  2.05 kB  after 0\n"
            "  reads 2.05 kB of local tensor 0 of the source [bytes 0..2048] from rank 1's memory "
            "into scratch [bytes 0..2048]\n"
            "  quantises rows 0..16 of 32 x 64 from scratch [bytes 0..2048] to mxfp8 in local "
            "tensor 0 of the target [bytes 0..1024]\n"
            "step 2  tile  512 B\n"
            "  packs 512 B of local tensor 1 of the source [bytes 64..576] into staging [bytes "
            "0..512]\n"
            "step 3  exchange  512 B  after 2\n"
            "  sends message 17 (512 B) to rank 2 from staging [bytes 0..512]\n");
}

TEST(DescribedProgram, totals_are_those_of_its_steps) {
  const ProgramTotals t = totals_of(small_program());
  EXPECT_EQ(t.tiles, 2);
  EXPECT_EQ(t.exchanges, 1);
  EXPECT_EQ(t.barriers, 1);
  EXPECT_EQ(t.messages, 1);
  EXPECT_EQ(t.read, 2048);
  EXPECT_EQ(t.packed, 512);
  EXPECT_EQ(t.sent, 512);
  EXPECT_EQ(t.quantised, 2048);
  ASSERT_EQ(t.peers.size(), 2U);
  EXPECT_EQ(t.peers[0].peer, Rank(1));
  EXPECT_EQ(t.peers[1].sent, 512);
  ASSERT_EQ(t.work.size(), 4U);
  EXPECT_EQ(t.work[1].what, "reads the memory of rank 1, quantises to mxfp8");
  EXPECT_EQ(t.work[3].what, "sends to rank 2");
}

TEST(DescribedProgram, what_one_rank_sends_another_receives) {
  Index sent = 0, received = 0;
  for (const Program& p : plain_programs()) {
    const ProgramTotals t = totals_of(p);
    Index steps = 0;
    for (const ProgramTotals::Work& work : t.work) steps += work.steps;
    EXPECT_EQ(steps, static_cast<Index>(p.steps.size()));
    sent += t.sent;
    received += t.received;
  }
  EXPECT_GT(sent, 0);
  EXPECT_EQ(sent, received);
}

}  // namespace
}  // namespace reshard
