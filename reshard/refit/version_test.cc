// SPDX-License-Identifier: Apache-2.0
// Protects: every reader sees exactly the version that was set, and a new PublishedVersion is
// empty; the ceiling of plain copies is measured once.
#include "reshard/refit/version.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstring>
#include <thread>

#include "reshard/refit/session_report.h"

namespace reshard {
namespace {

TEST(PublishedVersion, is_empty_when_fresh_also_as_zeros_of_shared_memory) {
  EXPECT_EQ(PublishedVersion().target_version(), TargetVersion{});
  alignas(PublishedVersion) std::byte zeros[sizeof(PublishedVersion)] = {};
  PublishedVersion published;
  EXPECT_EQ(std::memcmp(&published, zeros, sizeof zeros), 0);
  EXPECT_EQ(sizeof(PublishedVersion), 8U);
}

RC_GTEST_PROP(PublishedVersion, says_what_was_set, ()) {
  const auto state = *rc::gen::element(TargetState::empty, TargetState::whole, TargetState::torn);
  TargetVersion version{
      state,
      *rc::gen::oneOf(rc::gen::inRange<std::int64_t>(state == TargetState::torn ? -1 : 0, 1000),
                      rc::gen::inRange<std::int64_t>(kMaxVersion - 1000, kMaxVersion + 1)),
      *rc::gen::inRange(0, 2)};
  if (state == TargetState::empty) version = {};
  PublishedVersion published;
  published.set(version);
  RC_ASSERT(published.target_version() == version);
  RC_ASSERT(published.target_version_after_reading() == version);
  RC_ASSERT(published.trouble() == "");
}

TEST(PublishedVersion, is_torn_to_readers_if_it_is_what_no_session_writes) {
  // All ones; a state that there is not; empty with a version; whole without one; too large.
  for (const std::uint64_t bits :
       {~std::uint64_t{0}, std::uint64_t{3}, std::uint64_t{8}, std::uint64_t{1},
        static_cast<std::uint64_t>(kMaxVersion + 2) << 3 | 1}) {
    PublishedVersion published;
    void* const memory = &published;
    std::memcpy(memory, &bits, sizeof bits);
    EXPECT_EQ(published.target_version(), (TargetVersion{TargetState::torn, -1, 0})) << bits;
    EXPECT_NE(published.trouble().find("which no session writes"), std::string::npos) << bits;
  }
}

/// A version never appears with another's state or copy.
TEST(PublishedVersion, is_never_seen_mixed) {
  PublishedVersion published;
  constexpr std::int64_t kLast = 20000;
  std::thread reader([&] {
    std::int64_t last = -1;
    while (last < kLast) {
      const TargetVersion version = published.target_version();
      if (version.version < 0) continue;
      EXPECT_GE(version.version, last);
      last = version.version;
      EXPECT_EQ(version.buffer, static_cast<int>(version.version % 2));
      EXPECT_EQ(version.state, version.version % 3 == 0 ? TargetState::torn : TargetState::whole);
    }
  });
  for (std::int64_t v = 0; v <= kLast; ++v)
    published.set(
        {v % 3 == 0 ? TargetState::torn : TargetState::whole, v, static_cast<int>(v % 2)});
  reader.join();
}

TEST(PublishedVersion, states_have_names) {
  EXPECT_EQ(name(TargetState::empty), "empty");
  EXPECT_EQ(name(TargetState::whole), "whole");
  EXPECT_EQ(name(TargetState::torn), "torn");
}

TEST(CopyCeiling, is_measured_once) {
  const double once = copy_ceiling(1);
  EXPECT_GT(once, 0);
  EXPECT_EQ(copy_ceiling(1), once);
}

}  // namespace
}  // namespace reshard
