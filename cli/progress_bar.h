// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

#include "reshard/exec/progress.h"

namespace reshard::cli {

/// A line on standard error that shows the progress of a long operation: only on a terminal, and
/// only after one second. Cancels the operation after an interrupt, or when a mapped input can no
/// longer be read, with or without a terminal.
class ProgressBar {
 public:
  ProgressBar();
  /// Erases the line.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// The callback for an operation; refers to this object. Counts from `begin` out of `whole`
  /// bytes, so that one bar can cover several operations; `whole` 0: the operation's own total.
  Progress progress(Index begin = 0, Index whole = 0);

 private:
  bool show(std::string_view phase, Index done, Index total);

  std::chrono::steady_clock::time_point start_;
  bool terminal_;
  bool drawn_ = false;
};

}  // namespace reshard::cli
