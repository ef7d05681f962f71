// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/index/interval.h"
#include "reshard/io/files/json.h"

namespace reshard::hf {

/// Typed access to the keys of one JSON object of a config. A null counts as absent. Errors are
/// Code::corrupt unless noted, and begin with the source's name.
class ConfigFields {
 public:
  static constexpr Index kMaxSize = Index{1} << 31;

  /// Errors: not JSON, or not an object.
  static Result<ConfigFields> parse(std::string_view text, std::string_view source);

  bool has(std::string_view key) const { return find(key) != nullptr; }
  /// All keys, in the order of the text.
  std::vector<std::string> keys() const;
  bool empty() const { return json_.object() == nullptr || json_.object()->empty(); }
  /// True if the key is present, even with a null.
  bool mentions(std::string_view key) const { return json_.find(key) != nullptr; }
  /// A required integer from 1 to `max`.
  Result<Index> size(std::string_view key, Index max = kMaxSize) const;
  /// The same, or none if absent.
  Result<std::optional<Index>> optional_size(std::string_view key, Index max = kMaxSize) const;
  /// An integer from 0 to `max`, or `otherwise` if absent.
  Result<Index> count(std::string_view key, Index otherwise, Index max = kMaxSize) const;
  /// Any finite number; none if absent.
  Result<std::optional<double>> number(std::string_view key) const;
  /// Any integer; none if absent.
  Result<std::optional<Index>> integer(std::string_view key) const;
  Result<bool> boolean(std::string_view key, bool otherwise) const;
  Result<std::optional<std::string>> text(std::string_view key) const;
  /// The first entry of a list of strings; none if the list is absent or empty.
  Result<std::optional<std::string>> first_text(std::string_view key) const;
  /// A list of strings; none if absent.
  Result<std::optional<std::vector<std::string>>> texts(std::string_view key) const;
  /// A nested object; none if absent. Errors in it begin with "source: key".
  Result<std::optional<ConfigFields>> object(std::string_view key) const;
  /// A list of integers from 0 to kMaxSize; empty if absent.
  Result<std::vector<Index>> indices(std::string_view key) const;

  /// An error with this source's name.
  tl::unexpected<Error> wrong(std::string_view what) const;
  /// The same with Code::unsupported.
  tl::unexpected<Error> unsupported(std::string_view what) const;

  Json take() && { return std::move(json_); }

 private:
  const Json* find(std::string_view key) const;
  Json json_;
  std::string source_;
};

}  // namespace reshard::hf
