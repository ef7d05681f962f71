// SPDX-License-Identifier: Apache-2.0
#include "cli/tensor_kinds.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace reshard::cli {
namespace {

bool is_number(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

/// The name with each part between dots that is a number replaced by N.
std::string pattern_of(std::string_view name) {
  std::string pattern;
  while (true) {
    const auto dot = std::min(name.find('.'), name.size());
    const auto part = name.substr(0, dot);
    pattern += is_number(part) ? std::string_view("N") : part;
    if (dot == name.size()) return pattern;
    pattern += '.';
    name.remove_prefix(dot + 1);
  }
}

}  // namespace

std::vector<TensorKind> tensor_kinds(const ModelSpec& model) {
  std::vector<TensorKind> kinds;
  std::map<std::tuple<std::string, DType, std::string>, std::size_t> known;
  for (const CanonicalTensor& t : model.tensors()) {
    const auto pattern = pattern_of(t.name);
    const auto [at, fresh] =
        known.try_emplace({pattern, t.dtype, to_string(t.shape)}, kinds.size());
    if (fresh) kinds.push_back({pattern, t.dtype, t.shape, 0, 0});
    ++kinds[at->second].count;
    kinds[at->second].bytes += t.bytes();
  }
  return kinds;
}

}  // namespace reshard::cli
