// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/naming/parameter_names.h"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <vector>

namespace reshard {
namespace {

using Parts = std::vector<std::string_view>;

constexpr std::array<std::string_view, 4> kWrappers = {"_orig_mod", "_checkpoint_wrapped_module",
                                                       "_fsdp_wrapped_module", "module"};
constexpr std::array<std::string_view, 2> kAdapted = {"base_layer", "to_wrap"};
constexpr std::string_view kFactor = "lora_", kCopies = "modules_to_save",
                           kOriginal = "original_module", kTokens = "token_adapter",
                           kBridge = "adapter";

template <std::size_t n>
bool is_one_of(std::string_view part, const std::array<std::string_view, n>& names) {
  return std::ranges::find(names, part) != names.end();
}

/// The parts of a name that no wrapper added.
Parts parts_of(std::string_view name) {
  Parts all, kept;
  for (std::size_t dot = name.find('.'); dot != std::string_view::npos; dot = name.find('.')) {
    all.push_back(name.substr(0, dot));
    name.remove_prefix(dot + 1);
  }
  all.push_back(name);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const bool last = i + 1 == all.size();
    const bool of_adapter = i > 0 && (all[i - 1].starts_with(kFactor) || all[i - 1] == kCopies);
    if (last || of_adapter) {
      kept.push_back(all[i]);
    } else if (all[i] == "base_model" && i + 2 < all.size() && all[i + 1] == "model") {
      ++i;
    } else if (!is_one_of(all[i], kWrappers)) {
      kept.push_back(all[i]);
    }
  }
  return kept;
}

std::string joined(std::span<const std::string_view> parts) {
  std::string out;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) out += '.';
    out += parts[i];
  }
  return out;
}

/// "X.lora_A.weight", "X.lora_A.ADAPTER.weight", "X.lora_embedding_A",
/// "X.lora_embedding_A.ADAPTER".
std::optional<ParameterName> factor_of(const Parts& parts) {
  constexpr std::array<std::pair<std::string_view, ParameterRole>, 4> kFactors = {
      {{"lora_A", ParameterRole::a},
       {"lora_B", ParameterRole::b},
       {"lora_embedding_A", ParameterRole::embedding_a},
       {"lora_embedding_B", ParameterRole::embedding_b}}};
  const auto at =
      std::ranges::find_if(parts, [](std::string_view part) { return part.starts_with(kFactor); });
  if (at == parts.end()) return std::nullopt;
  const auto factor =
      std::ranges::find_if(kFactors, [&](const auto& known) { return known.first == *at; });
  const std::span module(parts.begin(), at);
  std::span rest(at + 1, parts.end());
  if (factor == kFactors.end() || joined(module).empty()) return std::nullopt;
  if (factor->second == ParameterRole::a || factor->second == ParameterRole::b) {
    if (rest.empty() || rest.back() != "weight") return std::nullopt;
    rest = rest.first(rest.size() - 1);
  }
  if (rest.size() > 1) return std::nullopt;
  return ParameterName{factor->second, joined(module) + ".weight",
                       rest.empty() ? "" : std::string(rest[0])};
}

/// "X.adapter.linear_in.weight", "X.adapter.adapter_q.linear_out.weight",
/// "X.adapter.weight_magnitude".
bool is_of_bridge(const Parts& parts) {
  const auto at = std::ranges::find(parts, kBridge);
  return at != parts.end() && at != parts.begin() &&
         std::any_of(at, parts.end(), [](std::string_view part) {
           return part == "linear_in" || part == "linear_out" || part == "weight_magnitude";
         });
}

bool is_other(const Parts& parts) {
  return std::ranges::any_of(
             parts,
             [](std::string_view part) { return part.starts_with(kFactor) || part == kTokens; }) ||
         is_of_bridge(parts);
}

}  // namespace

std::string without_wrappers(std::string_view name) { return joined(parts_of(name)); }

ParameterName parameter_name(std::string_view name) {
  Parts parts = parts_of(name);
  ParameterName found;
  // The last part is a parameter's, whatever it is called.
  const auto inner = [&] {
    return parts.begin() + (static_cast<Parts::difference_type>(parts.size()) - 1);
  };
  const auto end = std::remove_if(parts.begin(), inner(),
                                  [](std::string_view part) { return is_one_of(part, kAdapted); });
  found.wrapped = end != inner();
  parts.erase(end, inner());
  if (auto factor = factor_of(parts)) return *factor;
  if (is_other(parts)) return {ParameterRole::other, joined(parts)};
  // Both replace a module of the model, so neither is the first part.
  const auto original = std::find(std::min(parts.begin() + 1, inner()), inner(), kOriginal);
  const auto copy = std::find(std::min(parts.begin() + 1, inner()), inner(), kCopies);
  if (original != inner()) {
    found.role = ParameterRole::original;
    parts.erase(original);
  } else if (copy != inner() && copy + 1 != inner()) {
    found.adapter = *(copy + 1);
    parts.erase(copy, copy + 2);
  }
  found.tensor = joined(parts);
  return found;
}

std::string_view name(ParameterRole role) {
  switch (role) {
    case ParameterRole::whole: return "whole";
    case ParameterRole::original: return "original";
    case ParameterRole::a: return "A";
    case ParameterRole::b: return "B";
    case ParameterRole::embedding_a: return "embedding_A";
    case ParameterRole::embedding_b: return "embedding_B";
    case ParameterRole::other: break;
  }
  return "other";
}

}  // namespace reshard
