// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/misfits.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "reshard/base/closest_name.h"

namespace reshard {
namespace {

/// The names of PEFT's and Megatron-Bridge's modules around a frozen weight, and of their own.
constexpr std::array<std::string_view, 2> kWrapped = {".base_layer.", ".to_wrap."};
constexpr std::array<std::string_view, 5> kAdapter = {".lora_A.", ".lora_B.", ".lora_embedding_",
                                                      ".lora_magnitude_vector.", ".adapter."};

template <std::size_t n>
const std::string_view* first_with(const std::vector<std::string_view>& names,
                                   const std::array<std::string_view, n>& parts) {
  const auto found = std::ranges::find_if(names, [&](std::string_view name) {
    return std::ranges::any_of(
        parts, [&](std::string_view part) { return name.find(part) != std::string_view::npos; });
  });
  return found == names.end() ? nullptr : &*found;
}

/// "'X.base_layer.weight' and 'X.lora_A.weight' are ...", or nothing.
std::string adapter_text(const std::vector<std::string_view>& misfits) {
  const auto* wrapped = first_with(misfits, kWrapped);
  const auto* adapter = first_with(misfits, kAdapter);
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
