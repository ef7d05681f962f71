// SPDX-License-Identifier: Apache-2.0
// Many refits in a row of a changing model with a quantised target, on one rank of any transport:
// what they hold, plan, prove and allocate.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <vector>

#include "reshard/refit/session/allocation_count_testutil.h"
#include "reshard/refit/session/quantised_memory_testutil.h"

namespace reshard::quantised {

/// A model at so many versions that follow each other again and again: any two in a row differ, and
/// a target that was skipped holds what is seven versions old.
class ChangingModel {
 public:
  explicit ChangingModel(const Case& c) {
    for (std::int64_t v = 0; v < kVersions; ++v) {
      jobs_.push_back(std::make_unique<Job>(c));
      jobs_.back()->fill(v);
    }
  }
  const Job& at(std::int64_t version) const {
    return *jobs_[static_cast<std::size_t>(version % kVersions)];
  }

 private:
  static constexpr std::int64_t kVersions = 7;
  std::vector<std::unique_ptr<Job>> jobs_;
};

/// `refits` versions on one rank, each proved and compared with the oracle. From a fifth of them
/// on, when the heap has all that it needs, resident memory stays, and so does the least that a
/// refit allocates in this process where it has one rank alone (`whole_process`): messages that
/// come earlier than ever before may add room, but not in each.
inline void refit_often(RankEnds& ends, const ChangingModel& model, const Way& way, int refits,
                        bool whole_process) {
  const Rank me = ends.rank();
  const Memory memory(model.at(0), me);
  PublishedVersion published;
  auto session = Session::prepare(*ends.transport, *ends.control, memory.source(model.at(0)),
                                  memory.target(model.at(0), published), options_of(way));
  ASSERT_EQ(outcome(session), "");
  const Index staging = session->staging_bytes();
  std::int64_t resident = 0, least_early = std::numeric_limits<std::int64_t>::max();
  std::int64_t least_late = least_early;
  for (int version = 0; version < refits; ++version) {
    const Job& job = model.at(version);
    copy_to(*job.source.stored, memory.from, me);
    const CountAllocations counted;
    const auto report = session->refit(version);
    const std::int64_t count = counted.everywhere();
    ASSERT_EQ(outcome(report), "");
    ASSERT_EQ(report->plan_seconds, 0);
    ASSERT_EQ(report->version, version);
    ASSERT_EQ(published.target_version().version, memory.has_target() ? version : -1);
    ASSERT_EQ(memory.wrong(published.target_version(), job), 0) << "version " << version;
    if (version < refits / 5) continue;
    if (version == refits / 5) resident = resident_bytes();
    std::int64_t& least = version < refits / 2 ? least_early : least_late;
    least = std::min(least, count);
  }
  EXPECT_EQ(session->staging_bytes(), staging);
  EXPECT_LE(resident_bytes() - resident, kHeapPlay);
  // If each refit allocated once more than the last, these would be dozens more.
  if (whole_process) {
    EXPECT_LE(least_late, least_early + 8);
  }
  EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
}

}  // namespace reshard::quantised
