// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/index/interval.h"

namespace reshard::bench {

/// The command line of a benchmark program: pairs "--key value". Read every supported key before
/// calling unused().
class Arguments {
 public:
  /// Errors: arguments that are not pairs; a duplicate key.
  static Result<Arguments> parse(int argc, const char* const* argv);

  /// The value of a key, or `otherwise` if it was not given.
  std::string text(const std::string& key, const std::string& otherwise = "");
  /// Errors: a value that is not a whole number of at least 0.
  Result<Index> integer(const std::string& key, Index otherwise);
  /// Whole numbers between `separator`s: "1,2". Errors: as integer.
  Result<std::vector<Index>> integers(const std::string& key, const std::string& otherwise,
                                      char separator = ',');
  /// Errors: a key that was given but never read; names it.
  Result<> unused() const;

 private:
  std::map<std::string, std::string> given_;
  std::map<std::string, bool> asked_;
};

/// Whole numbers between `separator`s. Errors: a part that is not a whole number of at least 0.
Result<std::vector<Index>> whole_numbers(const std::string& text, char separator);

/// Runs a program's body and prints its error to standard error. @return the exit code
int run_program(int argc, const char* const* argv, Result<> (*body)(Arguments&));

}  // namespace reshard::bench
