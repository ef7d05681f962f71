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

#include "reshard/base/file.h"
#include "reshard/transport/deadline.h"
#include "reshard/transport/tcp/authenticate.h"
#include "reshard/transport/tcp/cipher.h"
#include "reshard/transport/tcp/coordinator_state.h"
#include "reshard/transport/tcp/socket.h"
#include "reshard/transport/tcp/stream.h"

namespace reshard::tcp {

/// Serves one group from a thread of its own: accepts connections until all ranks have joined, and
/// carries out the decisions of CoordinatorState. Connections without the secret are limited in
/// number, bytes and time. A rank that violates the protocol is disconnected as if it had died.
class Coordinator {
 public:
  struct Options {
    int size = 1;
    GroupKey key;
    Instance instance;
    /// How long a connection may take to join, and how many may be about to. If there are that
    /// many, the oldest is closed for a new one once it is 250 ms old.
    std::chrono::milliseconds handshake_timeout{5000};
    std::size_t max_unauthenticated = 256;
  };

  /// `listener` is a listening socket or a rendezvous socket (fd_socket.h), `first` a connection
  /// (of rank 0).
  Coordinator(const Options& options, FileDescriptor listener, FileDescriptor first,
              WakeFd wake_fd);
  /// Ends the group for the ranks that are still in it.
  ~Coordinator();
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  /// True once all ranks have left. Thread-safe.
  bool finished() const;
  /// Waits until finished(); false at the deadline. The ranks of a group that was aborted have
  /// kPartingTimeout from then: one that was stopped never leaves. Thread-safe.
  bool wait_finished(Deadline deadline) const;
  /// Enough for ranks that are not stopped to quiesce, which is all that is left to do.
  static constexpr std::chrono::seconds kPartingTimeout{2};

 private:
  using Clock = std::chrono::steady_clock;

  /// A connection: first unauthenticated, then authenticated, then one of a rank.
  struct Connection {
    FileDescriptor socket;
    Clock::time_point since;
    HelloReader hello;
    std::unique_ptr<SecureReader> reader;
    std::unique_ptr<SecureWriter> writer;
    std::optional<Rank> rank;
    bool parting = false;   ///< to be closed once all queued bytes are sent.
    bool finished = false;  ///< parting, all bytes sent: waits for the peer to close.
    bool over = false;      ///< to be closed now.
  };

  void run();
  /// Limits what wait_finished() waits, once the group was aborted.
  void notice_abort();
  /// Begins the end of the group: accepts no more ranks and sends the last frames.
  void retire(Clock::time_point now);
  void poll_all(Clock::time_point now);
  int poll_timeout(Clock::time_point now) const;
  bool may_accept(Clock::time_point now) const;
  void accept_one(Clock::time_point now);
  void add(FileDescriptor socket, Clock::time_point now);
  void read(Connection& connection);
  void read_hello(Connection& connection);
  bool on_frame(Connection& connection, Frame& frame);
  void part(Connection& connection);
  void lose(Connection& connection);
  void flush_and_sweep(Clock::time_point now);
  void send_tallies(Clock::time_point now);

  const Options options_;
  FileDescriptor listener_;
  const WakeFd wake_fd_;
  CoordinatorState group_;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<Connection*> by_rank_;
  std::size_t num_unauthenticated_ = 0;  ///< connections without a rank.
  std::vector<pollfd> polled_;
  Clock::time_point next_tallies_{}, next_accept_{}, end_ = Clock::time_point::max();
  std::atomic<bool> stop_{false};
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool finished_ = false;
  Deadline parting_ = Deadline::never();  ///< of an aborted group.
  std::thread thread_;
};

}  // namespace reshard::tcp
