// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <string>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/model/families/rules.h"
#include "reshard/model/tensor.h"

namespace reshard::families {

/// Checks that a model has the tensors that the file's `complete` asks for. `may_lack`: patterns
/// of tensors that may be missing; `lacked` receives those that name a missing tensor; either may
/// be null. Takes time proportional to the names, and sorts the numbers in them. Errors:
/// Code::not_found, which names the first missing tensor and says how many more there are; an
/// expression without a value; numbers so large that too many tensors would be asked for.
Result<> check_complete(const std::vector<RuleSet::Complete>& entries, const ModelSpec& model,
                        const Expression::Lookup& numbers, const std::set<std::string>* may_lack,
                        std::set<std::string>* lacked = nullptr);

}  // namespace reshard::families
