// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "reshard/base/result.h"

/// What passes between a program that started its ranks' processes (spawn.h) and these.
namespace reshard::cli {

/// A process that --spawn started. Such a process does not outlive the one that started it.
struct Spawned {
  int index = 0, count = 1;  ///< among the processes of the program.
  int report_fd = -1;        ///< where tell_parent() writes.
  int heartbeat_fd = -1;     ///< where it shows that it lives (pulse.h).
  std::string rendezvous;    ///< of the program's own making; empty where the user gave one.

  /// What the environment says, if this is one; its pulse begins then.
  static std::optional<Spawned> of_environment();
  /// The same for the environment of a new process that `parent` starts: "NAME=value".
  std::string environment_entry(int parent) const;
};

/// Tells the parent why this process fails: it prints one line for all.
void tell_parent(const Spawned& spawned, const Error& error);

/// What tell_parent() wrote.
struct Told {
  int index = 0;
  Error error;
};
std::optional<Told> parse_told(const std::string& line);

}  // namespace reshard::cli
