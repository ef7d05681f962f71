// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "reshard/base/file.h"
#include "reshard/base/result.h"

namespace reshard::cli {

/// Heartbeats of the processes that one program starts. A thread of each process increments a
/// counter in shared memory and does nothing else, so that only a stopped process is silent.
class Heartbeats {
 public:
  /// Errors: the system refuses.
  static Result<Heartbeats> make(int count);
  Heartbeats(Heartbeats&&) noexcept;
  Heartbeats& operator=(Heartbeats&&) = delete;
  ~Heartbeats();

  /// The descriptor to inherit: the processes count through it.
  int fd() const { return fd_.get(); }

  /// Reads all counters; call it several times a second. Time in which the caller itself was
  /// stopped is not counted as silence of the processes.
  void look();
  /// True if look() has not seen this process count for so long.
  bool silent_for(int index, std::chrono::duration<double> limit) const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Seen {
    std::uint64_t count = 0;
    Clock::duration silent{};
  };
  Heartbeats(FileDescriptor fd, std::span<std::atomic<std::uint64_t>> counts);

  FileDescriptor fd_;
  std::span<std::atomic<std::uint64_t>> counts_;
  std::vector<Seen> seen_;
  Clock::time_point last_ = Clock::now();
};

/// Starts the heartbeat of process `index`: ten times a second until the process ends. Does nothing
/// if `fd` is not that of Heartbeats.
void start_heartbeat(int fd, int index);

}  // namespace reshard::cli
