// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/naming/misfits.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/base/closest_name.h"
#include "reshard/model/naming/parameter_names.h"

namespace reshard {
namespace {

template <class Is>
const std::string_view* first_that(const std::vector<std::string_view>& names, Is is) {
  const auto found =
      std::ranges::find_if(names, [&](std::string_view name) { return is(parameter_name(name)); });
  return found == names.end() ? nullptr : &*found;
}

/// "'X.base_layer.weight' and 'X.lora_A.weight' are ...", or nothing.
std::string adapter_text(const std::vector<std::string_view>& misfits) {
  const auto* wrapped = first_that(misfits, [](const ParameterName& p) { return p.wrapped; });
  const auto* adapter = first_that(misfits, [](const ParameterName& p) {
    return p.role != ParameterRole::whole && p.role != ParameterRole::original;
  });
  if (wrapped == nullptr && adapter == nullptr) return "";
  std::string names = fmt::format("'{}' is", wrapped != nullptr ? *wrapped : *adapter);
  if (wrapped != nullptr && adapter != nullptr)
    names = fmt::format("'{}' and '{}' are", *wrapped, *adapter);
  return names + " there, of a LoRA adapter that is not merged: merge it into the weights first";
}

}  // namespace

std::string instead_of(std::string_view missing, const std::vector<std::string_view>& misfits) {
  if (misfits.empty()) return "; all that is there is asked for";
  if (const std::string adapter = adapter_text(misfits); !adapter.empty()) return "; " + adapter;
  if (const auto closest = closest_name(missing, misfits))
    return fmt::format("; '{}' is there instead", *closest);
  return fmt::format("; of what is there, nothing asks for '{}'{}", misfits.front(),
                     misfits.size() == 1 ? "" : fmt::format(" and {} more", misfits.size() - 1));
}

std::string not_of_config(const std::vector<std::string_view>& misfits, const Dims& shape) {
  const std::string adapter = adapter_text(misfits);
  const std::size_t more = misfits.size() - 1;
  const std::string others =
      more == 0 ? "" : fmt::format(", nor {} {} more", more == 1 ? "is" : "are", more);
  return fmt::format("tensor '{}' of shape {} is not part of the config's architecture{}; {}",
                     misfits.front(), to_string(shape), others,
                     adapter.empty() ? "--ignore leaves out what it names" : adapter);
}

}  // namespace reshard
