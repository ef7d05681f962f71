// SPDX-License-Identifier: Apache-2.0
#include "reshard/base/log/log.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <ctime>

namespace reshard {
namespace {

constexpr std::array<std::string_view, 4> kLogLevels = {"error", "warning", "info", "debug"};
constexpr int kNotRead = -1;

std::atomic<int> chosen_level{kNotRead};
std::atomic<LogSink> chosen_sink{nullptr};

/// The level of RESHARD_LOG.
LogLevel read_level() {
  const char* const word = std::getenv("RESHARD_LOG");
  const auto level = log_level_named(word == nullptr ? "" : word);
  int expected = kNotRead;
  chosen_level.compare_exchange_strong(expected,
                                       static_cast<int>(level.value_or(LogLevel::warning)));
  if (!level && word != nullptr && *word != '\0' && expected == kNotRead)
    log_event(LogLevel::warning, "base", {}, [&] {
      return fmt::format("RESHARD_LOG={} is none of {}", word, fmt::join(kLogLevels, ", "));
    });
  return static_cast<LogLevel>(chosen_level.load());
}

}  // namespace

std::string_view name(LogLevel level) { return kLogLevels.at(static_cast<std::size_t>(level)); }

std::optional<LogLevel> log_level_named(std::string_view word) {
  for (std::size_t i = 0; i < kLogLevels.size(); ++i)
    if (kLogLevels[i] == word) return static_cast<LogLevel>(i);
  return std::nullopt;
}

LogLevel log_level() {
  const int level = chosen_level.load(std::memory_order_relaxed);
  return level == kNotRead ? read_level() : static_cast<LogLevel>(level);
}

void set_log_level(LogLevel level) { chosen_level.store(static_cast<int>(level)); }

void set_log_sink(LogSink sink) { chosen_sink.store(sink); }

std::string log_line(const LogRecord& record) {
  const auto second = std::chrono::floor<std::chrono::seconds>(record.time);
  const auto after = std::chrono::floor<std::chrono::milliseconds>(record.time - second).count();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(second);
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  std::string line = fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z {} {}",
                                 utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday, utc.tm_hour,
                                 utc.tm_min, utc.tm_sec, after, name(record.level), record.room);
  if (record.rank) line += fmt::format(" rank {}", *record.rank);
  line += fmt::format(": {}", record.message);
  for (char& c : line)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  return line + "\n";
}

void write_log_line(const LogRecord& record) {
  const std::string line = log_line(record);
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

void detail::log_now(LogLevel level, std::string_view room, std::optional<int> rank,
                     std::string_view message) {
  const LogSink sink = chosen_sink.load();
  (sink == nullptr ? &write_log_line
                   : sink)({level, room, rank, message, std::chrono::system_clock::now()});
}

}  // namespace reshard
