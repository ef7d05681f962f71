// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "reshard/index/interval.h"

namespace reshard::bench {

/// A JSON object, built key by key and printed as one line to standard output.
class JsonLine {
 public:
  void add(std::string_view key, std::string_view value);
  void add(std::string_view key, const char* value) { add(key, std::string_view(value)); }
  void add(std::string_view key, Index value);
  void add(std::string_view key, double value);
  void add(std::string_view key, const std::vector<double>& values);
  void add(std::string_view key, const std::vector<Index>& values);

  /// Prints the object and flushes, so that a reader sees it while the program runs.
  void print() const;

 private:
  void key(std::string_view name);
  std::string text_;
};

}  // namespace reshard::bench
