// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "reshard/base/result.h"

namespace reshard::families {

/// Collects the errors of one request, so that the user sees all of them at once.
class ErrorList {
 public:
  /// The number of errors that a message lists.
  static constexpr std::size_t kMaxShown = 8;

  /// `family` is the prefix of the messages ("megatron: "); the combined message has it once.
  explicit ErrorList(std::string family) : start_(std::move(family) + ": ") {}

  template <class T>
  void add(const Result<T>& result) {
    if (!result) add(result.error());
  }
  void add(const tl::unexpected<Error>& error) { add(error.value()); }
  /// Adds an error with Code::invalid_argument.
  void refuse(std::string message) { add(Error{Code::invalid_argument, std::move(message)}); }
  /// The value of a result; on error adds the error and returns `otherwise`.
  template <class T>
  T take(Result<T> result, T otherwise = {}) {
    if (result) return *std::move(result);
    add(result.error());
    return otherwise;
  }
  /// The combined error: each message once, in the order of addition, with the code of the first.
  /// Success if there are none.
  Result<> result() const;

 private:
  void add(const Error& error);

  std::string start_;
  Code code_ = Code::invalid_argument;
  std::vector<std::string> messages_;
};

}  // namespace reshard::families
