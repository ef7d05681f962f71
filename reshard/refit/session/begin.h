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
struct SessionOptions;
}  // namespace reshard

namespace reshard::session {

/// The record that each rank sends to all others at the beginning of prepare() and every refit.
struct BeginRecord {
  enum class Kind : std::uint64_t { prepare = 1, refit = 2 };
  Kind kind = Kind::prepare;
  std::int64_t version = -1;             ///< that the caller asks for; prepare: -1.
  std::int64_t target_version = -1;      ///< of its target, if whole; otherwise -1.
  std::uint64_t source = 0, target = 0;  ///< digests; equal on equal ranks.
  std::uint64_t options = 0;             ///< options_word().
  std::uint64_t addresses = 0;           ///< digest of this rank's memory.
  std::uint64_t staging = 0;             ///< cap of staging, bytes.
  std::uint64_t memory = 0;  ///< GpuMemoryWatch::State::id of the source, behind the addresses.
  std::string trouble = {};  ///< why this rank cannot begin; "" if it can.
  std::string change = {};   ///< what changed on this rank since prepare(); "" if nothing did.
};

/// The options that must be equal on all ranks: four bits for each choice, and a digest of `ignore`
/// and `only` in the others.
std::uint64_t options_word(const SessionOptions& options);

/// All ranks' records, by rank.
using BeginRecords = std::vector<BeginRecord>;

/// A record as it travels, without its texts.
using BeginWords = std::array<std::uint64_t, 12>;

/// Collective. Exchanges all ranks' records into `all`: one all_gather_into of 96 bytes a rank; if
/// any rank has a text, also one all_gather of the texts. Reuses the memory of `all` and `buffer`.
/// Errors: theirs; `corrupt` for an invalid record.
Result<> exchange_records(const BeginRecord& mine, ControlPlane& control, Deadline deadline,
                          BeginRecords& all, std::vector<BeginWords>& buffer);

/// Each check returns an error that is identical on all ranks. @pre one record for each rank

/// Errors: ranks make different calls; a rank has trouble.
Result<> same_call(const BeginRecords& records);
/// Errors: layouts or options differ (the option and both values are named).
Result<> same_job(const BeginRecords& records);
/// Errors: versions differ, or are not above every target's.
Result<> same_version(const BeginRecords& records);
/// The minimum of all ranks' caps of staging.
Index least_staging(const BeginRecords& records);
/// True if the memory behind the addresses of some rank's source changed.
bool memory_changed(const BeginRecords& before, const BeginRecords& now);
/// The first difference of a rank from its record in `before`, with the rank; "" if there is none.
std::string first_change(const BeginRecords& before, const BeginRecords& now);

}  // namespace reshard::session
