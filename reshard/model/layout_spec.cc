// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/layout_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <vector>

#include "reshard/base/closest_name.h"
#include "reshard/base/value_map.h"

namespace reshard {
namespace {

std::string joined(auto begin, auto end) {
  std::string text;
  for (auto it = begin; it != end; ++it) text += (text.empty() ? "" : ", ") + std::string(*it);
  return text;
}

constexpr Index kLargest = Index{1} << 20;
/// The number of unknown keys that a message lists.
constexpr std::size_t kMaxShown = 8;

}  // namespace

Result<Index> LayoutSpec::integer(const std::string& key, Index otherwise, Index least) const {
  const auto it = keys.find(key);
  if (it == keys.end()) return otherwise;
  Index value = 0;
  const char* end = it->second.data() + it->second.size();
  const auto [stop, error] = std::from_chars(it->second.data(), end, value);
  if (error != std::errc() || stop != end || value < least || value > kLargest)
    return fail(Code::invalid_argument,
                fmt::format("{}: {}={} must be a whole number from {} to {}", family, key,
                            it->second, least, kLargest));
  return value;
}

Result<std::string> LayoutSpec::one_of(const std::string& key,
                                       std::initializer_list<std::string_view> allowed) const {
  const auto it = keys.find(key);
  if (it == keys.end()) return std::string(*allowed.begin());
  if (std::find(allowed.begin(), allowed.end(), it->second) == allowed.end())
    return fail(
        Code::invalid_argument,
        fmt::format("{}: {}={} must be one of {}{}", family, key, it->second,
                    joined(allowed.begin(), allowed.end()), did_you_mean(it->second, allowed)));
  return it->second;
}

Result<std::optional<DType>> LayoutSpec::dtype() const {
  const auto it = keys.find("dtype");
  if (it == keys.end()) return std::nullopt;
  const auto found = dtype_from_torch_name(it->second);
  if (found && is_convertible(*found)) return found;
  return fail(Code::invalid_argument,
              fmt::format("{}: dtype={} must be float32, bfloat16 or float16", family, it->second));
}

Result<> LayoutSpec::check_keys(const std::set<std::string>& known) const {
  std::vector<std::string> unknown;
  for (const auto& [key, value] : keys)
    if (!known.contains(key)) unknown.push_back("'" + key + "'" + did_you_mean(key, known));
  if (unknown.empty()) return {};
  const std::size_t more = unknown.size() - std::min(unknown.size(), kMaxShown);
  unknown.resize(unknown.size() - more);
  return fail(Code::invalid_argument, fmt::format("{}: unknown key{} {}{}; known keys are {}",
                                                  family, unknown.size() + more > 1 ? "s" : "",
                                                  joined(unknown.begin(), unknown.end()),
                                                  more > 0 ? fmt::format(" and {} more", more) : "",
                                                  joined(known.begin(), known.end())));
}

std::span<const std::string_view> layout_families() {
  static constexpr std::string_view kFamilies[] = {"hf",     "megatron", "vllm",      "sglang",
                                                   "fsdp",   "dtensor",  "rules",     "explicit",
                                                   "traced", "dcp",      "torch_dist"};
  return kFamilies;
}

bool takes_file(std::string_view family) {
  return family == "rules" || family == "dtensor" || family == "explicit";
}

bool takes_engine(std::string_view family) { return family == "traced"; }

std::vector<std::string> split_joined(std::string_view text) {
  constexpr std::string_view kJoin = " + ";
  const auto begins_layout = [](std::string_view rest) {
    const std::string_view first = rest.substr(0, rest.find_first_of(": /."));
    const auto families = layout_families();
    return rest.substr(first.size()).starts_with(':') ||
           std::ranges::find(families, first) != families.end();
  };
  std::vector<std::string> out;
  std::size_t begin = 0;
  for (std::size_t at = text.find(kJoin); at != text.npos; at = text.find(kJoin, at + 1)) {
    if (!begins_layout(text.substr(at + kJoin.size()))) continue;
    out.emplace_back(text.substr(begin, at - begin));
    begin = at + kJoin.size();
  }
  out.emplace_back(text.substr(begin));
  return out;
}

Result<LayoutSpec> parse_layout(std::string_view text) {
  LayoutSpec spec;
  const std::size_t colon = text.find(':');
  spec.family = std::string(text.substr(0, colon));
  if (spec.family.empty())
    return fail(
        Code::invalid_argument,
        fmt::format("layout '{}' names no family; write it as megatron:tp=4,pp=2 or hf", text));
  if (colon == std::string_view::npos) return spec;
  std::string_view rest = text.substr(colon + 1);
  for (bool first = true; !rest.empty() || first; first = false) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view item = rest.substr(0, comma);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
    if (first && takes_file(spec.family)) {
      spec.file = std::string(item);
      continue;
    }
    if (first && takes_engine(spec.family) && item.find('=') == item.npos) {
      spec.engine = std::string(item);
      continue;
    }
    const std::size_t equals = item.find('=');
    if (equals == std::string_view::npos || equals == 0 || equals + 1 == item.size())
      return fail(Code::invalid_argument,
                  fmt::format("layout '{}': '{}' must be key=value", text, item));
    const std::string key(item.substr(0, equals));
    if (!spec.keys.emplace(key, std::string(item.substr(equals + 1))).second)
      return fail(Code::invalid_argument,
                  fmt::format("layout '{}': key '{}' is given twice", text, key));
  }
  if (takes_file(spec.family) && spec.file.empty())
    return fail(Code::invalid_argument,
                fmt::format("layout '{0}' needs a file: {0}:cut.json", spec.family));
  return spec;
}

std::string to_string(const LayoutSpec& spec) {
  std::string text = spec.family, separator = ":";
  if (const std::string& first = spec.file.empty() ? spec.engine : spec.file; !first.empty()) {
    text += ":" + first;
    separator = ",";
  }
  for (const auto& [key, value] : spec.keys) {
    text += separator + key + "=" + value;
    separator = ",";
  }
  return text;
}

}  // namespace reshard
