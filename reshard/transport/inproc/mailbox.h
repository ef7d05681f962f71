// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "reshard/base/ring_queue.h"
#include "reshard/transport/inproc/event_count.h"
#include "reshard/transport/inproc/step.h"
#include "reshard/transport/messages/slab.h"
#include "reshard/transport/messages/table.h"

namespace reshard::inproc {

/// A part of a matched message, to be copied by one thread. `bytes` is at most kGrain.
struct Slice {
  const std::byte* source = nullptr;
  std::byte* target = nullptr;
  std::size_t bytes = 0;
  Step* sender = nullptr;
  Step* receiver = nullptr;
};

/// What a step left undone in one mailbox.
struct Withdrawn {
  std::int64_t messages = 0;
  std::optional<std::string> unmatched;  ///< the first message that never met its other half.
};

/// All messages on their way to one rank: halves that wait for their other half, and matched
/// messages that wait to be copied. Any thread may call anything; one lock per call, and no call
/// copies or waits.
class Mailbox {
 public:
  /// `closed` says of each rank whether it has closed its transport, and outlives the mailbox.
  Mailbox(Rank owner, std::span<const std::atomic<bool>> closed) : owner_(owner), closed_(closed) {}

  /// Adds one half of each message. Sends must be to the owner, receives by the owner.
  void post(std::span<const Send> sends, Step& step, Wake& wake);
  void post(std::span<const Recv> recvs, Step& step, Wake& wake);

  /// Moves about one grain of work into `out`; 0 when there is none. Pass what was taken to
  /// finish().
  std::size_t take(std::span<Slice> out);
  /// True when take() may find work.
  bool has_work() const { return matched_.load(std::memory_order_acquire) != 0; }

  /// Removes all that is left of the step here. The other halves of its matched messages fail.
  Withdrawn withdraw(Step& step, Wake& wake);

  /// Fails every step that waits here for a message from or to a rank that has closed.
  void fail_closed(Rank rank, Wake& wake);

 private:
  struct Key {
    Rank from;
    MessageId id;
  };
  enum class Side { send, recv };
  struct Half {
    Side side = Side::send;
    std::byte* data = nullptr;  ///< only read when side is send.
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
  engine::MessageTable table_;  ///< of waiting_, as `arrival`s.
  engine::Slab<Half> waiting_;  ///< halves whose other half has not come.
  RingQueue<Slice> jobs_;       ///< here `bytes` is what is left of the message, of any size.
  std::atomic<std::size_t> matched_{0};
};

/// Copies the slices.
void copy(std::span<const Slice> slices);

/// Counts copied slices down in the steps of both sides; marks who has to be woken.
void finish(std::span<const Slice> slices, Wake& wake);

}  // namespace reshard::inproc
