// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "reshard/base/result.h"

/// Messages between a program that started its ranks' processes (spawn.h) and these processes.
namespace reshard::cli {

/// A process that --spawn started. It does not outlive its parent.
struct Spawned {
  int index = 0, count = 1;  ///< among the processes of the program.
  int report_fd = -1;        ///< where report_to_parent() writes.
  int heartbeat_fd = -1;     ///< of its heartbeat (heartbeat.h).
  std::string rendezvous;    ///< made by the parent; empty if the user gave one.

  /// Reads the environment; starts the heartbeat if this is such a process.
  static std::optional<Spawned> of_environment();
  /// The entry "NAME=value" for the environment of a process that `parent` starts.
  std::string environment_entry(int parent) const;
};

/// Reports this process's error to the parent, which prints one line for all.
void report_to_parent(const Spawned& spawned, const Error& error);

/// An error that report_to_parent() wrote.
struct ReportedError {
  int index = 0;
  Error error;
};
std::optional<ReportedError> parse_reported_error(const std::string& line);

}  // namespace reshard::cli
