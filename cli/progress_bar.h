// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

#include "reshard/exec/progress.h"

namespace reshard::cli {

/// A line on standard error that shows how far a long operation is: only on a terminal, and only
/// from its second second on. Also where interrupts, and input that cannot be read any more, cancel
/// the operation, with or without a terminal.
class ProgressBar {
 public:
  ProgressBar();
  /// Wipes the line.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// What to hand to an operation; refers to this object. Bytes count from `begin` out of `whole`,
  /// so that one bar covers several operations; a `whole` of 0 takes the operation's own total.
  Progress progress(Index begin = 0, Index whole = 0);

 private:
  bool show(std::string_view phase, Index done, Index total);

  std::chrono::steady_clock::time_point start_;
  bool terminal_;
  bool drawn_ = false;
};

}  // namespace reshard::cli
