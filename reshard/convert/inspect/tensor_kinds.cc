// SPDX-License-Identifier: Apache-2.0
#include "reshard/convert/inspect/tensor_kinds.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace reshard {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// A number, or a grouped tensor's "weight7", as N; other words may well end in a digit.
void append_part(std::string& pattern, std::string_view part) {
  std::string_view word = part;
  while (!word.empty() && is_digit(word.back())) word.remove_suffix(1);
  const bool counted = word.empty() || word == "weight" || word == "bias" || word == "model";
  pattern += counted ? word : part;
  if (counted && word.size() < part.size()) pattern += 'N';
}

}  // namespace

std::string pattern_of(std::string_view name) {
  std::string pattern;
  while (true) {
    const auto dot = std::min(name.find('.'), name.size());
    append_part(pattern, name.substr(0, dot));
    if (dot == name.size()) return pattern;
    pattern += '.';
    name.remove_prefix(dot + 1);
  }
}

std::vector<TensorKind> tensor_kinds(const ModelSpec& model) {
  std::vector<TensorKind> kinds;
  std::map<std::tuple<std::string, DType, std::string>, std::size_t> known;
  for (const CanonicalTensor& t : model.tensors()) {
    const auto pattern = pattern_of(t.name);
    const Dims shape = t.stored_shape();
    const auto [at, fresh] = known.try_emplace({pattern, t.dtype, to_string(shape)}, kinds.size());
    if (fresh) kinds.push_back({pattern, t.dtype, shape, 0, 0});
    ++kinds[at->second].count;
    kinds[at->second].bytes += t.bytes();
  }
  return kinds;
}

}  // namespace reshard
