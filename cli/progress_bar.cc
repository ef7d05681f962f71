// SPDX-License-Identifier: Apache-2.0
#include "cli/progress_bar.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "cli/interrupt.h"
#include "reshard/base/number_text.h"
#include "reshard/io/files/mapping_guard.h"

namespace reshard::cli {
namespace {

constexpr int kCells = 24;
constexpr double kSilentSeconds = 1;

}  // namespace

ProgressBar::ProgressBar()
    : start_(std::chrono::steady_clock::now()), terminal_(::isatty(STDERR_FILENO) == 1) {}

ProgressBar::~ProgressBar() {
  if (drawn_) std::fputs("\r\x1b[K", stderr);
}

Progress ProgressBar::progress(Index begin, Index whole) {
  return [this, begin, whole](std::string_view phase, Index done, Index total) {
    return show(phase, begin + done, whole > 0 ? whole : total);
  };
}

bool ProgressBar::show(std::string_view phase, Index done, Index total) {
  if (interrupted() || any_mapping_lost()) return false;
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  if (!terminal_ || seconds < kSilentSeconds || total <= 0) return true;
  const double part = std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0);
  const auto full = static_cast<std::size_t>(part * kCells);
  const std::string left = part > 0.01 ? human_seconds(seconds * (1 - part) / part) + " left" : "";
  fmt::print(stderr, "\r{} [{}{}] {:3.0f} %  {} of {}  {}  {}\x1b[K", phase, std::string(full, '#'),
             std::string(kCells - full, '.'), part * 100, human_bytes(done), human_bytes(total),
             rate(done, seconds), left);
  std::fflush(stderr);
  drawn_ = true;
  return true;
}

}  // namespace reshard::cli
