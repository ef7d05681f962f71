// SPDX-License-Identifier: Apache-2.0
#include "cli/progress_bar.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "cli/interrupt.h"
#include "reshard/base/number_text.h"
#include "reshard/io/files/mapping_guard.h"

namespace reshard::cli {
namespace {

constexpr double kSilentSeconds = 1, kSecondsPerFrame = 0.1;
constexpr double kSecondsPerLine = 30;
constexpr int kUsualColumns = 80;
/// No terminal is wider.
constexpr int kAnyColumns = 1 << 16;

int columns_of_stderr() {
  winsize size{};
  const bool known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : kUsualColumns;
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string bar(double part, int cells) {
  const auto full = static_cast<std::size_t>(part * cells);
  return fmt::format("[{}{}]", std::string(full, '#'),
                     std::string(static_cast<std::size_t>(cells) - full, '.'));
}

}  // namespace

std::string progress_text(const ProgressState& s, int columns) {
  const double part =
      std::clamp(static_cast<double>(s.done) / static_cast<double>(s.total), 0.0, 1.0);
  const std::string percent = fmt::format("{:3.0f} %", part * 100);
  const std::string bytes = fmt::format("  {} of {}", human_bytes(s.done), human_bytes(s.total));
  std::string speed, left;
  if (s.moved > 0 && s.seconds > 0) {
    speed = "  " + rate(s.moved, s.seconds);
    const auto rest = static_cast<double>(std::max<Index>(0, s.total - s.done));
    left = fmt::format("  {} left", human_seconds(s.seconds * rest / static_cast<double>(s.moved)));
  }
  // What tells least goes first.
  const std::string candidates[] = {
      fmt::format("{} {} {}{}{}{}", s.phase, bar(part, 24), percent, bytes, speed, left),
      fmt::format("{} {} {}{}{}{}", s.phase, bar(part, 10), percent, bytes, speed, left),
      fmt::format("{} {} {}{}{}", s.phase, bar(part, 10), percent, bytes, left),
      fmt::format("{} {}{}{}", s.phase, percent, bytes, left),
      fmt::format("{} {}{}", s.phase, percent, left),
      percent,
  };
  for (const std::string& text : candidates)
    if (static_cast<int>(text.size()) <= columns) return text;
  return percent.substr(0, static_cast<std::size_t>(std::max(columns, 0)));
}

ProgressBar::ProgressBar()
    : ProgressBar({stderr, ::isatty(STDERR_FILENO) == 1, &columns_of_stderr, &now}) {}

ProgressBar::ProgressBar(Place place)
    : place_(std::move(place)),
      next_(place_.seconds() + (place_.terminal ? kSilentSeconds : kSecondsPerLine)) {}

ProgressBar::~ProgressBar() {
  if (drawn_ && place_.terminal) std::fputs("\r\x1b[K", place_.file);
}

Progress ProgressBar::progress(Index begin, Index whole) {
  return [this, begin, whole](std::string_view phase, Index done, Index total) {
    return show(phase, begin + done, whole > 0 ? whole : total);
  };
}

bool ProgressBar::show(std::string_view phase, Index done, Index total) {
  if (interrupted() || any_mapping_lost()) return false;
  const double seconds = place_.seconds();
  if (begin_ < 0 || done < begin_) {
    begin_ = done;
    begin_seconds_ = seconds;
  }
  if (seconds < next_ || total <= 0) return true;
  const ProgressState state{phase, done, total, done - begin_, seconds - begin_seconds_};
  if (place_.terminal) {
    // The last column stays free: some terminals wrap a full line.
    fmt::print(place_.file, "\r{}\x1b[K", progress_text(state, place_.columns() - 1));
  } else {
    fmt::print(place_.file, "reshard: {}\n", progress_text(state, kAnyColumns));
  }
  std::fflush(place_.file);
  next_ = seconds + (place_.terminal ? kSecondsPerFrame : kSecondsPerLine);
  drawn_ = true;
  return true;
}

}  // namespace reshard::cli
