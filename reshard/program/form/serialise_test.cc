// SPDX-License-Identifier: Apache-2.0
// Protects: a serialised program is read back as it was; the form is compact and the same on every
// machine; bytes that no program has are refused with the byte at which they are wrong.
#include "reshard/program/form/serialise.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <random>

#include "reshard/base/hash.h"
#include "reshard/program/programs_testutil.h"

namespace reshard {
namespace {

std::vector<Program> real_programs() {
  std::vector<Program> programs = plain_programs();
  for (Program& p : converted_programs()) programs.push_back(std::move(p));
  return programs;
}

TEST(SerialisedProgram, is_read_back_as_it_was) {
  for (const Program& p : real_programs()) {
    const auto bytes = serialise(p);
    const auto again = parse_program(bytes);
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ(*again, p);
    EXPECT_EQ(digest(*again), digest_of_serialised(bytes));
  }
}

TEST(SerialisedProgram, of_no_steps_is_the_same_on_every_machine) {
  Program p;
  p.rank = Rank(3);
  p.plan_digest = 7;
  p.buffers = {{ProgramBuffer::Kind::staging, Rank(), SlotId(), 64, true}};
  p.staging_bytes = 64;
  p.first_wait = {0};
  const std::vector<unsigned char> expected = {'R', 'S', 'P', 'R', 'O', 'G', '\r', '\n', 1,
                                               6,   7,   64,  0,   0,   1,   1,    0,    0,
                                               64,  0,   0,   0,   0,   0,   0,    0};
  const auto bytes = serialise(p);
  EXPECT_TRUE(std::ranges::equal(bytes, std::as_bytes(std::span(expected))));
  EXPECT_EQ(hex(digest(p)), hex(digest_of_serialised(std::as_bytes(std::span(expected)))));
}

TEST(SerialisedProgram, takes_few_bytes_for_each_piece) {
  std::size_t bytes = 0, entries = 0;
  for (const Program& p : real_programs()) {
    bytes += serialise(p).size();
    entries += p.pieces.size() + p.matrices.size() + p.messages.size() + p.steps.size();
  }
  RecordProperty("bytes_per_entry", std::to_string(bytes / entries));
  EXPECT_LT(bytes, 16 * entries) << entries;
}

TEST(SerialisedProgram, that_ends_early_or_late_is_refused) {
  for (const Program& p : real_programs()) {
    auto bytes = serialise(p);
    for (std::size_t n = 0; n < bytes.size(); n += 1 + n / 50)
      EXPECT_FALSE(parse_program(std::span(bytes).first(n))) << n;
    bytes.push_back(std::byte{0});
    const auto late = parse_program(bytes);
    ASSERT_FALSE(late);
    EXPECT_EQ(late.error().message, "program: 1 bytes after the end");
  }
}

TEST(SerialisedProgram, that_is_damaged_is_refused_or_another_program) {
  std::mt19937 random(1);
  std::size_t refused = 0, accepted = 0;
  const auto programs = real_programs();
  for (std::size_t i = 0; i < 6000; ++i) {
    auto bytes = serialise(programs[i % programs.size()]);
    for (std::size_t n = 1 + random() % 3; n > 0; --n) {
      const std::size_t at = random() % bytes.size();
      bytes[at] = i % 2 == 0 ? bytes[at] ^ std::byte(1U << random() % 8) : std::byte(random());
    }
    if (i % 7 == 0)
      bytes.erase(bytes.begin() + static_cast<std::ptrdiff_t>(random() % bytes.size()));
    const auto parsed = parse_program(bytes);
    if (parsed) {
      ++accepted;
      EXPECT_EQ(serialise(*parsed), bytes);
    } else {
      ++refused;
      EXPECT_EQ(parsed.error().message.find('\n'), std::string::npos);
      EXPECT_TRUE(parsed.error().message.starts_with("program: ")) << parsed.error().message;
    }
  }
  EXPECT_GT(refused, 1000U);
  RecordProperty("accepted", std::to_string(accepted));
}

/// The header of a program without buffers, and then these bytes.
std::vector<std::byte> hostile(std::vector<unsigned char> rest) {
  std::vector<unsigned char> all = {'R', 'S', 'P', 'R', 'O', 'G', '\r', '\n', 1, 0, 0, 0, 0, 0};
  all.insert(all.end(), rest.begin(), rest.end());
  const auto bytes = std::as_bytes(std::span(all));
  return {bytes.begin(), bytes.end()};
}

TEST(SerialisedProgram, errors_say_what_is_wrong_and_where) {
  const std::pair<std::vector<unsigned char>, const char*> cases[] = {
      {{0xff, 0xff, 0xff, 0xff, 0x7f},
       "program: byte 19: the number of buffers is 34359738367, at most 0 is allowed"},
      {{1, 9, 0, 0, 0}, "program: byte 16: the kind of a buffer is 9, at most 7 is allowed"},
      {{0, 1, 1, 0, 0}, "program: byte 18: a buffer is 0, which is out of range"},
      {{0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 5},
       "program: byte 27: the number of a step's waits is 5, at most 0 is allowed"},
      {{0, 0, 0, 0, 0, 0, 0, 0x80, 0}, "program: byte 21: not in the shortest form"},
  };
  for (const auto& [bytes, message] : cases) {
    const auto parsed = parse_program(hostile(bytes));
    ASSERT_FALSE(parsed);
    EXPECT_EQ(parsed.error().message, message);
  }
  auto other = hostile({});
  other[8] = std::byte{2};
  EXPECT_EQ(parse_program(other).error().message, "program: byte 8: version 2, this build reads 1");
  other[0] = std::byte{0};
  EXPECT_EQ(parse_program(other).error().message, "program: byte 0: is not a serialised program");
}

}  // namespace
}  // namespace reshard
