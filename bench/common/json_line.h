// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "reshard/index/interval.h"

namespace reshard::bench {

/// A JSON object, made key by key, that is printed as one line of standard output.
class JsonLine {
 public:
  void add(std::string_view key, std::string_view value);
  void add(std::string_view key, const char* value) { add(key, std::string_view(value)); }
  void add(std::string_view key, Index value);
  void add(std::string_view key, double value);
  void add(std::string_view key, const std::vector<double>& values);
  void add(std::string_view key, const std::vector<Index>& values);

  /// Writes the object and flushes, so that a reader sees it while the program goes on.
  void print() const;

 private:
  void key(std::string_view name);
  std::string text_;
};

}  // namespace reshard::bench
