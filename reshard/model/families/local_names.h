// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/sharding/rank_set.h"

namespace reshard::families {

/// `text` with "$1" .. "$9" replaced by what the wildcards of a pattern matched. Errors: a number
/// without a wildcard.
Result<std::string> substituted(const std::string& text, const std::vector<std::string>& groups);

/// The local names in use on each rank.
class LocalNames {
 public:
  /// Reserves a name on these ranks. Errors: a rank already uses it (named).
  Result<> take(const std::string& name, const RankSet& ranks);

 private:
  std::unordered_map<std::string, RankSet> taken_;
};

}  // namespace reshard::families
