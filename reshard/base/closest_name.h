// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace reshard {

/// The one of `names` that `text` is most likely meant to be, or none if none is close. A name that
/// is `text` with more components before it or without its first ones ("model.norm.weight" and
/// "norm.weight") is closest; then the one with the fewest edits, at most a third of the characters
/// of `text`. Edits are insertions, deletions, replacements and exchanges of neighbours; case and
/// the difference of - and _ do not count. Of several with equally many, the first of those that
/// begin like `text` for longest. The result refers to `names`.
std::optional<std::string_view> closest_name(std::string_view text,
                                             const std::vector<std::string_view>& names);

/// The suffix of an error message about an unknown name: " (did you mean 'vllm'?)", or "" if none
/// of the known names is close. `names` is any range of texts.
template <class Names>
std::string did_you_mean(std::string_view text, const Names& names) {
  std::vector<std::string_view> views;
  for (const auto& name : names) views.emplace_back(name);
  const auto found = closest_name(text, views);
  return found ? " (did you mean '" + std::string(*found) + "'?)" : std::string();
}

/// The same for names in one text, between ", ".
std::string did_you_mean_one_of(std::string_view text, std::string_view names);

}  // namespace reshard
