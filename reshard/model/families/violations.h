// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "reshard/base/result.h"

namespace reshard::families {

/// Collects all that is wrong with one request, so that it is said at once.
class Violations {
 public:
  /// How many are said in full.
  static constexpr std::size_t kMaxShown = 8;

  /// `family` begins every message ("megatron: "), and is said once.
  explicit Violations(std::string family) : start_(std::move(family) + ": ") {}

  template <class T>
  void add(const Result<T>& result) {
    if (!result) add(result.error());
  }
  void add(const tl::unexpected<Error>& error) { add(error.value()); }
  /// Notes a wrong argument.
  void refuse(std::string message) { add(Error{Code::invalid_argument, std::move(message)}); }
  /// The value; `otherwise` where the result is an error, which is noted.
  template <class T>
  T take(Result<T> result, T otherwise = {}) {
    if (result) return *std::move(result);
    add(result.error());
    return otherwise;
  }
  /// An error that says each violation once, in the order in which they were added, or nothing. Its
  /// code is that of the first.
  Result<> result() const;

 private:
  void add(const Error& error);

  std::string start_;
  Code code_ = Code::invalid_argument;
  std::vector<std::string> messages_;
};

}  // namespace reshard::families
