// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/identify/prefix.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "reshard/io/hf/config.h"
#include "reshard/model/canonical.h"

namespace reshard::identify {

std::string prefix_of(const Checkpoint& weights) {
  const auto path = weights.config_path();
  const auto config = path ? read_config(*path) : fail(Code::not_found, "");
  const auto wanted = config ? canonical_tensors(*config) : fail(Code::not_found, "");
  if (!wanted || wanted->size() == 0) return "";
  std::set<std::string> names, prefixes;
  for (const TensorSpec& t : weights.pieces().tensors) names.insert(t.name);
  const std::string& first = wanted->tensors().front().name;
  for (const std::string& name : names)
    if (name.ends_with("." + first)) prefixes.insert(name.substr(0, name.size() - first.size()));
  std::string best;
  const auto matches = [&](const std::string& prefix) {
    return std::ranges::count_if(wanted->tensors(), [&](const CanonicalTensor& t) {
      return names.contains(prefix + t.name);
    });
  };
  auto most = matches("");
  for (const std::string& prefix : prefixes)
    if (const auto n = matches(prefix); n > most) std::tie(best, most) = std::pair(prefix, n);
  return best;
}

}  // namespace reshard::identify
