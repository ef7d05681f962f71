// SPDX-License-Identifier: Apache-2.0
// A decoder is where both its embedding and its final norm are: below "model." for most classes,
// "app.model.model." in a trainer's state, "model.language_model." in a larger model. The prefix is
// what precedes the class's own names there.
#include "reshard/io/identify/prefixes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

#include "reshard/io/torch_dist/megatron_layout.h"
#include "reshard/model/names.h"

namespace reshard::identify {
namespace {

/// True if `end` is all of `text` or what follows one of its dots.
bool ends_in(std::string_view text, std::string_view end) {
  if (!text.ends_with(end)) return false;
  return text.size() == end.size() || end.empty() || text[text.size() - end.size() - 1] == '.';
}

std::string before_end(const std::string& text, std::string_view end) {
  return text.substr(0, text.size() - end.size());
}

/// The shortest run of whole parts at the beginning of `prefix` that no other prefix begins with.
std::string distinct_part(const std::string& prefix, const std::vector<std::string>& others) {
  for (std::size_t dot = prefix.find('.'); dot != std::string::npos;
       dot = prefix.find('.', dot + 1)) {
    const std::string part = prefix.substr(0, dot + 1);
    const auto shared = [&](const std::string& other) {
      return other != prefix && other.starts_with(part);
    };
    if (std::ranges::none_of(others, shared)) return part;
  }
  return "";
}

}  // namespace

std::vector<std::string> model_prefixes(const std::set<std::string>& names,
                                        const ModelConfig& config) {
  ModelConfig plain = config;
  plain.decoder_prefix.reset();
  plain.head_prefix.clear();
  const HfNames usual(plain);
  const std::string& own = usual.decoder();
  const std::string embedding = usual.embedding().substr(own.size());
  const std::string norm = usual.final_norm().substr(own.size());
  std::vector<std::string> decoders, prefixes;
  for (const std::string& name : names) {
    if (ends_in(name, torch_dist::kEmbedding))
      prefixes.push_back(before_end(name, torch_dist::kEmbedding));
    if (ends_in(name, embedding) && names.contains(before_end(name, embedding) + norm))
      decoders.push_back(before_end(name, embedding));
  }
  for (const std::string& decoder : decoders) {
    if (!ends_in(decoder, own)) {
      // detect_prefixes() finds it among all names, if it is the only one.
      prefixes.push_back(decoders.size() == 1 ? "" : distinct_part(decoder, decoders));
      continue;
    }
    std::string prefix = before_end(decoder, own);
    const bool beside = names.contains(decoder + usual.lm_head());
    // A bare decoder, saved with its head under one key.
    prefixes.push_back(beside && !names.contains(prefix + usual.lm_head()) ? decoder : prefix);
  }
  std::ranges::sort(prefixes);
  return prefixes;
}

std::string ambiguous_prefixes(const std::vector<std::string>& prefixes) {
  std::vector<std::string> places, choices, patterns;
  for (const std::string& prefix : prefixes) {
    places.push_back(prefix.empty() ? "without a prefix" : fmt::format("below '{}'", prefix));
    if (prefix.empty()) continue;
    choices.push_back("--prefix " + prefix);
    patterns.push_back(fmt::format("'{}*'", prefix));
  }
  std::string text =
      fmt::format("holds more than one model: {}; choose with {} (prefix= in Python)",
                  fmt::join(places, " and "), fmt::join(choices, " or "));
  if (places.size() > choices.size())
    text += fmt::format(", or leave out others with --ignore {}", fmt::join(patterns, " "));
  return text;
}

}  // namespace reshard::identify
