// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/dtype.h"
#include "reshard/base/result.h"
#include "reshard/index/interval.h"

namespace reshard {

/// A layout in the notation of users: "megatron:tp=4,pp=2,ep=8", "vllm:tp=8,offset=64", "hf",
/// "rules:cut.json,tp=2", "traced:vllm,tp=4".
struct LayoutSpec {
  std::string family;
  std::string file;                         ///< the text after the colon, if takes_file(family).
  std::map<std::string, std::string> keys;  ///< each key appears once.
  std::string engine = {};                  ///< of traced: the text after the colon.

  /// The value of an integer key; `otherwise` if absent. Errors: not a whole number from `least` to
  /// 2^20.
  Result<Index> integer(const std::string& key, Index otherwise, Index least = 1) const;
  /// The value of a key that must be one of `allowed`; the first of these if absent.
  Result<std::string> one_of(const std::string& key,
                             std::initializer_list<std::string_view> allowed) const;
  /// The key dtype, in which floating-point tensors are stored; none if absent. Errors: not
  /// float32, bfloat16 or float16.
  Result<std::optional<DType>> dtype() const;
  /// Fails unless all keys are in `known`; the error names the unknown keys and the known ones.
  Result<> check_keys(const std::set<std::string>& known) const;
};

/// The names of all families.
std::span<const std::string_view> layout_families();
/// True for families that are read from a file: "rules:FILE", "dtensor:FILE", "explicit:FILE".
bool takes_file(std::string_view family);
/// True for "traced:ENGINE".
bool takes_engine(std::string_view family);
/// The layouts that a text joins by " + ", in order: "vllm:tp=4 + vllm:tp=2,offset=4" are two. Text
/// after " + " that does not begin like a layout belongs to what is before it, such as a file name.
std::vector<std::string> split_joined(std::string_view text);
/// Parses the notation of one layout. Errors: empty text, unknown form, a key without value, a
/// repeated key.
Result<LayoutSpec> parse_layout(std::string_view text);
/// The notation, with the keys in alphabetical order.
std::string to_string(const LayoutSpec& spec);

}  // namespace reshard
