// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <functional>
#include <string>

#include "reshard/exec/progress.h"

namespace reshard::cli {

/// How far an operation is.
struct ProgressState {
  std::string_view phase;
  Index done = 0, total = 0;  ///< bytes.
  Index moved = 0;            ///< of `done`, in `seconds`: an earlier run may have done the rest.
  double seconds = 0;
};

/// The state in at most `columns` columns: what fits of a bar, percent, bytes, rate and time left.
/// @pre total > 0
std::string progress_text(const ProgressState& state, int columns);

/// Shows the progress of a long operation: on a terminal a line that stays, after one second; to a
/// file or a pipe a new line every half minute. Cancels the operation after an interrupt, or when a
/// mapped input can no longer be read, also where nothing is shown.
class ProgressBar {
 public:
  /// The place in which the bar is shown.
  struct Place {
    std::FILE* file;
    bool terminal;
    std::function<int()> columns;     ///< of the terminal, which may change.
    std::function<double()> seconds;  ///< of a clock.
  };
  /// Standard error.
  ProgressBar();
  explicit ProgressBar(Place place);
  /// Erases the line of a terminal.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// The callback for an operation; refers to this object. Counts from `begin` out of `whole`
  /// bytes, so that one bar can cover several operations; `whole` 0: the operation's own total.
  Progress progress(Index begin = 0, Index whole = 0);

 private:
  bool show(std::string_view phase, Index done, Index total);

  Place place_;
  double next_;       ///< when to show the next state.
  Index begin_ = -1;  ///< `done` of the first call; -1: none came.
  double begin_seconds_ = 0;
  bool drawn_ = false;
};

}  // namespace reshard::cli
