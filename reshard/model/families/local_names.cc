// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/families/local_names.h"

#include <fmt/format.h>

#include "reshard/model/name_pattern.h"

namespace reshard::families {

Result<std::string> substituted(const std::string& text, const std::vector<std::string>& groups) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '$' || i + 1 == text.size() || text[i + 1] < '0' || text[i + 1] > '9') {
      out += text[i];
      continue;
    }
    const auto k = static_cast<std::size_t>(text[++i] - '0');
    if (k == 0 || k > groups.size())
      return fail(Code::invalid_argument,
                  fmt::format("name '{}' uses ${} but its pattern has {} wildcards", text, k,
                              groups.size()));
    out += groups[k - 1];
    RESHARD_TRY(check_tensor_name(out));
  }
  return out;
}

Result<> LocalNames::take(const std::string& name, const RankSet& ranks) {
  RankSet& taken = taken_[name];
  if (const RankSet twice = taken & ranks; !twice.empty())
    return fail(Code::invalid_argument,
                fmt::format("local name '{}' is given to two tensors of rank {}", name,
                            twice.members()[0].value()));
  taken = taken | ranks;
  return {};
}

}  // namespace reshard::families
