// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace reshard {

/// The importance of an event. Failures are errors of the calls that failed, and no events besides.
enum class LogLevel : std::uint8_t { error, warning, info, debug };

/// "error", "warning", "info", "debug"
std::string_view name(LogLevel level);
/// The level of that name, or none.
std::optional<LogLevel> log_level_named(std::string_view word);

/// An event.
struct LogRecord {
  LogLevel level = LogLevel::info;
  std::string_view room;      ///< the part of the library: "transport", "exec".
  std::optional<int> rank{};  ///< of the group in question; none: not known.
  std::string_view message;   ///< one line without a full stop.
  std::chrono::system_clock::time_point time{};
};

/// Receives events, on the thread on which each happens, and from several threads at once. Must not
/// block, throw or log. `record` is borrowed during the call.
using LogSink = void (*)(const LogRecord& record);

/// The level up to which events are logged: at first that of RESHARD_LOG, or `warning`. These
/// functions are thread-safe, and no lock is taken for any event. A transport in a module has its
/// own copy of them, which knows RESHARD_LOG only.
LogLevel log_level();
void set_log_level(LogLevel level);
/// Replaces what receives events; null: write_log_line, as at first.
void set_log_sink(LogSink sink);

/// "2026-11-29T09:21:31.123Z info exec rank 3: message" and a newline, in UTC; control characters
/// are replaced by '?'.
std::string log_line(const LogRecord& record);
/// Writes the line to standard error by one system call. What cannot be written is lost.
void write_log_line(const LogRecord& record);

namespace detail {
void log_now(LogLevel level, std::string_view room, std::optional<int> rank,
             std::string_view message);
}

/// Logs an event; `message` makes its text, and is not called if the level is not logged.
template <std::invocable Message>
void log_event(LogLevel level, std::string_view room, std::optional<int> rank, Message message) {
  if (level <= log_level()) detail::log_now(level, room, rank, message());
}

}  // namespace reshard
