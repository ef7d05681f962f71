// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "reshard/base/containers/ring_queue.h"
#include "reshard/base/result.h"
#include "reshard/transport/inproc/event_count.h"
#include "reshard/transport/messages/slab.h"
#include "reshard/transport/messages/table.h"
#include "reshard/transport/transport.h"

namespace reshard::inproc {

/// Bytes that one thread copies before it checks again for aborts, deadlines and work to share.
inline constexpr std::size_t kGrain = 256 * 1024;

/// The number of grains of a message; 1 for an empty message.
constexpr std::int64_t grains(std::size_t bytes) {
  return bytes == 0 ? 1 : static_cast<std::int64_t>((bytes - 1) / kGrain + 1);
}

/// One exchange as its peers see it. Peers hold plain pointers to it, so it must live until `left`
/// is 0: every grain counts until it is copied or withdrawn, and the count is the last field that a
/// peer touches.
struct Step {
  Rank rank;
  std::vector<Send> sends;  ///< sorted by `to`.
  std::vector<Recv> recvs;
  std::atomic<std::int64_t> left{0};  ///< grains neither copied nor withdrawn.

  /// Records the error unless there is one. Does not touch `left`.
  void fail(Error error) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(error);
    failed_.store(true, std::memory_order_release);
  }

  std::optional<Error> error() const {
    if (!failed_.load(std::memory_order_acquire)) return std::nullopt;
    const std::lock_guard lock(mutex_);
    return error_;
  }

  /// Removes the error of an earlier use. @pre no peer has a pointer to this step
  void clear_error() {
    error_.reset();
    failed_.store(false, std::memory_order_relaxed);
  }

  /// True if these were the last grains: the caller must then wake the owner and not touch this
  /// step again.
  [[nodiscard]] bool count_down(std::int64_t n) {
    return left.fetch_sub(n, std::memory_order_acq_rel) == n;
  }

 private:
  mutable std::mutex mutex_;
  std::optional<Error> error_;
  std::atomic<bool> failed_{false};
};

/// A part of a matched message, which one thread copies. `bytes` is at most kGrain.
struct Slice {
  const std::byte* source = nullptr;
  std::byte* target = nullptr;
  std::size_t bytes = 0;
  Step* sender = nullptr;
  Step* receiver = nullptr;
};

/// The messages of a step that withdraw() removed.
struct Withdrawn {
  std::int64_t messages = 0;
  std::optional<std::string> unmatched;  ///< describes the first one that was not matched.
};

/// All messages to one rank: sends and receives that are not matched yet, and matched messages that
/// are not copied yet. Thread-safe; each call takes one lock, and none copies or waits.
class Mailbox {
 public:
  /// `closed` has, by rank, whether the rank closed its transport. It must outlive the mailbox.
  Mailbox(Rank owner, std::span<const std::atomic<bool>> closed) : owner_(owner), closed_(closed) {}

  /// Adds sends to the owner or receives of the owner, and matches them.
  void post(std::span<const Send> sends, Step& step, Wake& wake);
  void post(std::span<const Recv> recvs, Step& step, Wake& wake);

  /// Takes about one grain of work; returns the number of slices, 0 if there is none. The caller
  /// copies them and passes them to finish().
  std::size_t take(std::span<Slice> out);
  /// True if take() may find work.
  bool has_work() const { return matched_.load(std::memory_order_acquire) != 0; }

  /// Removes all messages of the step. The peers of matched ones get an error.
  Withdrawn withdraw(Step& step, Wake& wake);

  /// Fails every step that has an unmatched message here from or to this rank.
  void fail_messages_of(Rank rank, Wake& wake);

 private:
  struct Key {
    Rank from;
    MessageId id;
  };
  enum class Side { send, recv };
  struct Half {
    Side side = Side::send;
    std::byte* data = nullptr;  ///< only read if side is send.
    std::size_t bytes = 0;
    Step* step = nullptr;
    Rank from{};
  };

  void meet(Key key, Half mine, Wake& wake);
  void drop(Step& step, std::size_t bytes, Wake& wake);
  bool withdraw_job(const Slice& job, Step& step, Wake& wake);
  bool withdraw_half(Key key, Side side, Step& step, Wake& wake);
  std::string describe(Key key) const;

  const Rank owner_;
  const std::span<const std::atomic<bool>> closed_;
  std::mutex mutex_;
  messages::MessageTable table_;  ///< of waiting_, all of the kind `unexpected`.
  messages::Slab<Half> waiting_;  ///< unmatched sends and receives.
  RingQueue<Slice> jobs_;         ///< `bytes` is the rest of the message, of any size.
  std::atomic<std::size_t> matched_{0};
};

/// Copies the slices.
void copy(std::span<const Slice> slices);

/// Counts copied slices down in the steps of both sides; adds the ranks to wake.
void finish(std::span<const Slice> slices, Wake& wake);

}  // namespace reshard::inproc
