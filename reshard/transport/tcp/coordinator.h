// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "reshard/base/file_descriptor.h"
#include "reshard/transport/deadline.h"
#include "reshard/transport/tcp/cipher.h"
#include "reshard/transport/tcp/coordinator_state.h"
#include "reshard/transport/tcp/socket.h"
#include "reshard/transport/tcp/stream.h"

namespace reshard::tcp {

/// Serves one group from a thread of its own: accepts its ranks, until all are there, and carries
/// what CoordinatorState decides. Whoever connects without the secret gets a bounded number of
/// bytes, places and seconds, and then is cut off; a rank that sends what it may not is cut off
/// like one that died.
class Coordinator {
 public:
  struct Options {
    int size = 1;
    GroupKey key;
    Instance instance;
    /// How long a connection may take to show that it knows the secret, and how many may be about
    /// to. When all places are taken the oldest makes room after a quarter of a second.
    std::chrono::milliseconds patience{5000};
    std::size_t max_strangers = 256;
  };

  /// `listener` is a listening socket or a door (door.h), `first` a connected one (rank 0's).
  Coordinator(const Options& options, FileDescriptor listener, FileDescriptor first, Bell bell);
  /// Ends the group for those who are still in it.
  ~Coordinator();
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  /// All ranks have left. Any thread.
  bool finished() const;
  /// Waits for it; false at the deadline. Any thread.
  bool wait_finished(Deadline deadline) const;

 private:
  using Clock = std::chrono::steady_clock;

  /// One socket: first a stranger, then somebody who has the secret, then a rank.
  struct Connection {
    FileDescriptor socket;
    Clock::time_point since;
    std::vector<std::byte> hello;  ///< of a stranger, as far as it came.
    std::unique_ptr<SecureReader> reader;
    std::unique_ptr<SecureWriter> writer;
    std::optional<Rank> rank;
    bool parting = false;   ///< gets what is queued, and then is closed.
    bool finished = false;  ///< parting, and all is sent: waits for the other side to close.
    bool over = false;      ///< to be closed now.
  };

  void run();
  /// Starts to end: no more ranks, and those here get their last frames.
  void retire(Clock::time_point now);
  void poll_all(Clock::time_point now);
  int poll_timeout(Clock::time_point now) const;
  bool may_accept(Clock::time_point now) const;
  void accept_one(Clock::time_point now);
  void add(FileDescriptor socket, Clock::time_point now);
  void read(Connection& connection);
  void greet(Connection& connection);
  bool on_frame(Connection& connection, Frame& frame);
  void part(Connection& connection);
  void lose(Connection& connection);
  void flush_and_sweep(Clock::time_point now);
  void tell_tallies(Clock::time_point now);

  const Options options_;
  FileDescriptor listener_;
  const Bell bell_;
  CoordinatorState group_;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<Connection*> by_rank_;
  std::size_t num_strangers_ = 0;  ///< connections without a rank.
  std::vector<pollfd> polled_;
  Clock::time_point next_tallies_{}, next_accept_{}, end_ = Clock::time_point::max();
  std::atomic<bool> stop_{false};
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool finished_ = false;
  std::thread thread_;
};

}  // namespace reshard::tcp
