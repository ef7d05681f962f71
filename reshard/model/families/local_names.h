// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/sharding/rank_set.h"

namespace reshard::families {

/// `text` with "$1" .. "$9" replaced by what the wildcards of a pattern matched. Error: a number
/// that the pattern does not have.
Result<std::string> substituted(const std::string& text, const std::vector<std::string>& groups);

/// Which local names ranks have given away.
class LocalNames {
 public:
  /// Error when a rank of `held` has a tensor of this name already; names that rank.
  Result<> take(const std::string& name, const RankSet& held);

 private:
  std::unordered_map<std::string, RankSet> taken_;
};

}  // namespace reshard::families
