// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "reshard/base/dtype.h"
#include "reshard/base/result.h"
#include "reshard/index/interval.h"

namespace reshard {

/// A layout as a user writes it: "megatron:tp=4,pp=2,ep=8", "vllm:tp=8,offset=64", "hf",
/// "rules:cut.json,tp=2".
struct LayoutSpec {
  std::string family;
  std::string file;                         ///< where takes_file: the text right after the colon.
  std::map<std::string, std::string> keys;  ///< each key once.

  /// An integer key, or `otherwise` when absent. Errors: not a whole number from `least` to 2^20.
  Result<Index> integer(const std::string& key, Index otherwise, Index least = 1) const;
  /// A key with one of these words, or the first of them when absent.
  Result<std::string> one_of(const std::string& key,
                             std::initializer_list<std::string_view> allowed) const;
  /// The key dtype: what floating-point tensors are stored as; none when absent. Error: not
  /// float32, bfloat16 or float16.
  Result<std::optional<DType>> dtype() const;
  /// Error naming the keys that are not among `known`, and those that are.
  Result<> check_keys(const std::set<std::string>& known) const;
};

/// True for the families that are read from a file: "rules:FILE", "dtensor:FILE".
bool takes_file(std::string_view family);
/// Parses the notation above. Errors: empty, unknown form, key without value, a key twice.
Result<LayoutSpec> parse_layout(std::string_view text);
/// The notation; keys in alphabetical order.
std::string to_string(const LayoutSpec& spec);

}  // namespace reshard
