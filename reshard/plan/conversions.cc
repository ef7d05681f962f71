// SPDX-License-Identifier: Apache-2.0
#include "reshard/plan/conversions.h"

#include <fmt/format.h>

#include <algorithm>

namespace reshard {
std::vector<ConversionUse> conversions_of(const Planner& planner) {
  std::vector<ConversionUse> uses;
  const ModelSpec& model = planner.source().model();
  for (Index t = 0; t < model.size(); ++t) {
    const TensorId id(static_cast<TensorId::rep>(t));
    const Conversion conversion = planner.conversion(id);
    if (!conversion.converts() || !planner.moves(id)) continue;
    auto use = std::find_if(uses.begin(), uses.end(),
                            [&](const ConversionUse& u) { return u.conversion == conversion; });
    if (use == uses.end())
      use = uses.insert(use, {conversion, 0, 0, loses_precision(conversion), model[id].name});
    ++use->tensors;
    use->elements += volume(model[id].shape);
  }
  return uses;
}

std::vector<std::string> omitted_by(const Planner& planner) {
  std::vector<std::string> names;
  const ModelSpec& model = planner.source().model();
  for (Index t = 0; t < model.size(); ++t) {
    const TensorId id(static_cast<TensorId::rep>(t));
    if (!planner.source().parts_of(id).empty() && planner.target().parts_of(id).empty())
      names.push_back(model[id].name);
  }
  return names;
}

std::string to_string(const ConversionUse& use) {
  return fmt::format("converts {} tensor{} from {} to {}{}, such as '{}'", use.tensors,
                     use.tensors == 1 ? "" : "s", to_string(use.conversion.from),
                     to_string(use.conversion.to), use.loses_precision ? " (loses precision)" : "",
                     use.example);
}

}  // namespace reshard
