// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reshard/base/ids.h"
#include "reshard/base/result.h"

namespace reshard::cli {

/// For tests of a dying rank: the environment's RESHARD_TEST_KILL="rank=R,at=POINT" makes rank R
/// kill itself, as `kill -9` would.
class TestKill {
 public:
  enum class Point { never, prepare, start, middle, check, commit, end, verify };

  /// Reads the environment for this rank. Errors: not in that form.
  static Result<TestKill> of_environment(Rank me);

  /// Kills this process if the environment asks for it at this point.
  void at(Point point) const;
  bool waits_for(Point point) const { return point_ == point; }

 private:
  Point point_ = Point::never;
};

}  // namespace reshard::cli
