// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "reshard/index/interval.h"
#include "reshard/refit/version.h"
#include "reshard/transport/control.h"

namespace reshard {

/// What a rank tells all others before anything else, at prepare and at each refit.
struct BeginRecord {
  enum class Kind : std::uint64_t { prepare = 1, refit = 2 };
  Kind kind = Kind::prepare;
  std::int64_t version = -1;  ///< that it wants; prepare: -1.
  std::int64_t held = -1;     ///< version that its target holds whole; -1 where none.
  std::uint64_t source = 0, target = 0, options = 0;  ///< digests; those of equal ranks are equal.
  std::uint64_t addresses = 0;                        ///< digest of this rank's memory.
  std::uint64_t staging = 0;                          ///< cap of staging, bytes.
  std::string trouble = {};                           ///< why this rank cannot; "" where it can.
  std::string change = {};  ///< what changed here since prepare, in words; "" where nothing did.
};

/// What all ranks told, by rank.
using BeginRecords = std::vector<BeginRecord>;

/// A record as it travels, but for its texts.
using BeginWords = std::array<std::uint64_t, 11>;

/// Collective: one all_gather_into of 88 bytes a rank, and where any rank has a text one all_gather
/// of the texts. Into `all`; memory of both is used again. Errors: theirs; `corrupt` for what no
/// rank sends.
Result<> exchange_records(const BeginRecord& mine, ControlPlane& control, Deadline deadline,
                          BeginRecords& all, std::vector<BeginWords>& room);

/// Nothing, or what all ranks find alike: another kind of call, or a rank's trouble.
/// @pre one record for each rank, as below
Result<> same_call(const BeginRecords& records);
/// The least cap of staging of all ranks.
Index least_staging(const BeginRecords& records);
/// Nothing, or what all ranks find alike: layouts or options that differ.
Result<> same_job(const BeginRecords& records);
/// Nothing, or what all ranks find alike: versions that differ, or not above what is held.
Result<> same_version(const BeginRecords& records);
/// The first way in which a rank is not as it was, with its number; "" where there is none.
std::string first_change(const BeginRecords& before, const BeginRecords& now);

}  // namespace reshard
