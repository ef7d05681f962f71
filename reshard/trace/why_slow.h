// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "reshard/base/ids.h"
#include "reshard/index/interval.h"

namespace reshard {

struct GroupTrace;

/// The breakdown of a traced refit's seconds, in the words of a Simulation (simulate/simulate.h).
/// Without events that move bytes, all of it is zero, and ranks are -1.
struct WhySlow {
  /// From the first rank's beginning until the last rank's bytes are in place.
  double seconds = 0;
  /// The time that the busiest resource needs for all its bytes: the threads of a rank that copy,
  /// what a rank sends, or what it receives. Its rate is measured: that of a plain copy, if known;
  /// otherwise the highest that the resource itself kept up for an eighth of its bytes.
  double bound_seconds = 0;
  std::string bound_by;  ///< that resource, such as "copies of rank 3".
  /// The rank whose last bytes moved last, and how many seconds after those of the
  /// median rank. All others waited for it.
  Rank slowest_rank{-1};
  double behind_seconds = 0;
  double waited_seconds = 0;  ///< of all other ranks together.
  /// The rank that began last, and how long after the first.
  Rank late_rank{-1};
  double late_seconds = 0;
  /// The slowest link: the pair of ranks with the lowest rate while its bytes moved, of those with
  /// at least a tenth of the largest pair's bytes. Ranks are -1 if no bytes moved between ranks.
  Rank link_from{-1}, link_to{-1};
  Index link_bytes = 0;
  double link_seconds = 0;             ///< in which they moved.
  double fastest_link_per_second = 0;  ///< bytes per second of the fastest such pair.
  double clock_error_seconds = 0;      ///< the most that the clock of a rank may be off.
  Index dropped = 0;                   ///< events that were not recorded.
  /// Why the file of the trace could not be written; empty if it was.
  std::string problem;

  /// bound_seconds over seconds; 0 if unknown. Above 1 if caches were faster than the plain copy.
  double bound_fraction() const { return seconds > 0 ? bound_seconds / seconds : 0; }
  double link_bytes_per_second() const {
    return link_seconds > 0 ? static_cast<double>(link_bytes) / link_seconds : 0;
  }
};

/// `copy_bytes_per_second`: rate of a plain copy of one rank's threads while all ranks copy; 0:
/// unknown. Cost: events, sorted.
WhySlow why_slow(const GroupTrace& trace, double copy_bytes_per_second = 0);

/// Three to five lines of text, each indented by two spaces and ending in a newline.
std::string why_slow_text(const WhySlow& why);

}  // namespace reshard
