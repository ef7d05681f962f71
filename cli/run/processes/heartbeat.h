// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "reshard/base/file_descriptor.h"
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

  /// What the processes need to count: to be open in them.
  int fd() const { return fd_.get(); }

  /// Reads all counters; call it several times a second. Time in which the caller itself was
  /// stopped is not counted as silence of the processes.
  void look();
  /// Whether this process has not counted for so long, as look() saw it.
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

/// Called in process `index`: starts its heartbeat, ten times a second until the process ends.
/// Without effect where `fd` is not what Heartbeats::fd() was.
void start_heartbeat(int fd, int index);

}  // namespace reshard::cli
