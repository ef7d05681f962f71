// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "reshard/base/file.h"
#include "reshard/transport/control.h"
#include "reshard/transport/tcp/coordinator.h"
#include "reshard/transport/tcp/socket.h"
#include "reshard/transport/tcp/stream.h"

namespace reshard::tcp {

/// A rank's end of a control plane that a Coordinator serves. A thread of its own receives, so that
/// aborts, deaths and tallies arrive without a call; callers send.
class TcpControl final : public ControlPlane {
 public:
  /// An authenticated connection to the coordinator.
  struct Channel {
    FileDescriptor socket;
    SessionKeys keys;
  };

  TcpControl(Rank rank, int size, Channel channel, WakeFd wake_fd);
  ~TcpControl() override { close(); }

  /// Joins as the rank that `join` asks for and waits for the other ranks. Must be the first call,
  /// and only made once. Returns nothing if the coordinator went away, so that the caller may look
  /// for another. Errors: those of the coordinator; `aborted` if `gives_up`, called several times a
  /// second, returns a reason.
  std::optional<Result<>> enter(const Frame& join, Deadline deadline,
                                const std::function<std::string()>& gives_up = nullptr);
  /// Rank 0 only: takes ownership of the coordinator, which lives on after close() until all ranks
  /// have left.
  void own(std::unique_ptr<Coordinator> coordinator) { coordinator_ = std::move(coordinator); }

  Rank rank() const override { return rank_; }
  int size() const override { return size_; }
  Result<std::vector<std::vector<std::byte>>> all_gather(std::span<const std::byte> mine,
                                                         Deadline deadline) override;
  Result<> all_gather_into(std::span<const std::byte> mine, std::span<std::byte> all,
                           Deadline deadline) override;
  Result<> barrier(Deadline deadline) override;
  void abort(std::string_view reason) override;
  Result<> status() const override;
  std::vector<Rank> lost() const override;
  void report(std::int64_t amount) override;
  std::int64_t reported() const override;
  Result<> quiesce(Deadline deadline) override;
  void close() override;

 private:
  using Clock = std::chrono::steady_clock;

  void listen();
  int listen_timeout(Clock::time_point now) const;
  bool silent() const;
  bool on_frame(Frame& frame);
  void on_coordinator_gone();
  void add_lost(Rank rank);
  /// @pre mutex_ is held
  bool set_aborted(std::string text);
  void send_tally(Clock::time_point now);

  Result<> usable(std::string_view what) const;
  /// Sends a request and waits for its answer. @pre the lock is held, as it is afterwards
  Result<> ask(std::unique_lock<std::mutex>& lock, Kind kind, std::string_view what,
               std::span<const std::byte> mine, Deadline deadline);
  /// Waits until answer_ answers request `id`. Errors: that of the answer, or why none will come.
  /// @pre as ask()
  Result<> answer(std::unique_lock<std::mutex>& lock, Kind kind, std::uint64_t id,
                  std::string_view what, Deadline deadline);
  template <class Over>
  void wait_for_answer(std::unique_lock<std::mutex>& lock, Kind kind, std::uint64_t id,
                       Deadline deadline, Over over);
  Error coordinator_gone_error(std::string_view what) const;
  void post(const Frame& frame);
  bool flush();

  const Rank rank_;
  const int size_;
  const FileDescriptor socket_;
  const WakeFd wake_fd_;
  std::unique_ptr<Coordinator> coordinator_;

  std::mutex send_mutex_;  ///< guards writer_.
  SecureWriter writer_;
  SecureReader reader_;  ///< of the receiving thread.
  Frame request_;        ///< of the calling thread; its memory is reused.

  mutable std::mutex mutex_;  ///< guards the following.
  std::condition_variable changed_;
  Frame answer_;  ///< to request last_id_, if is_answered_; its memory is reused.
  bool is_answered_ = false;
  std::uint64_t last_id_ = 0;
  bool closed_ = false, coordinator_gone_ = false;
  bool coordinator_silent_ = false;  ///< it left a request unanswered, and answered none since.
  Error abort_error_;
  std::vector<Rank> lost_;

  std::atomic<bool> aborted_{false}, closing_{false}, tally_due_{false};
  std::atomic<std::int64_t> mine_{0}, others_{0};
  Clock::time_point next_tally_{}, closing_end_ = Clock::time_point::max();
  std::thread thread_;
};

/// Keeps a coordinator alive until its ranks have left or the process ends.
void keep_serving(std::unique_ptr<Coordinator> coordinator);

}  // namespace reshard::tcp
