// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "reshard/gpu_transport/nccl/group_queue.h"
#include "reshard/transport/control.h"
#include "reshard/transport/transport.h"

namespace reshard::nccl {

/// A message that is not over, for errors and to refuse ids in use.
struct InUse {
  bool sending = false;
  Rank peer;
  MessageId id;
  std::size_t bytes = 0;  ///< that are not over.
  auto key() const { return std::tuple(sending, peer, id); }
};

/// One exchange.
struct Step {
  std::uint64_t number = 0;
  std::vector<InUse> messages;  ///< by key.
  std::size_t left = 0;         ///< messages that are not over.
  std::optional<Error> error;
  bool done() const { return left == 0 || error; }

  InUse* find(const InUse& like) {
    const auto at = std::ranges::lower_bound(messages, like.key(), {}, &InUse::key);
    return at != messages.end() && at->key() == like.key() && at->bytes > 0 ? &*at : nullptr;
  }
  void complete(InUse& message, std::size_t bytes) {
    message.bytes -= bytes;
    if (message.bytes == 0) --left;
  }
};

/// A side of a message of a rank to itself.
struct OwnSide {
  std::shared_ptr<Step> step;
  std::byte* bytes = nullptr;
  std::size_t size = 0;
  MessageId id;
};
using OwnSides = std::map<MessageId, OwnSide>;

/// The state that the transport and its events share.
class NcclGroup {
 public:
  NcclGroup(ControlPlane& control, std::shared_ptr<const cuda::Device> gpu, GroupQueue queue,
            cuda::Stream own, std::size_t segment_bytes)
      : rank_(control.rank()),
        size_(control.size()),
        control_(&control),
        gpu_(std::move(gpu)),
        queue_(std::move(queue)),
        own_(std::move(own)),
        segment_bytes_(segment_bytes) {}

  Rank rank() const { return rank_; }
  int size() const { return size_; }

  Result<std::shared_ptr<Step>> post(std::span<const Send> sends, std::span<const Recv> recvs);
  /// Advances what is under way. True if anything moved.
  bool progress();
  void fail_all(const Error& why);
  void close();
  /// The oldest message of a step that is not over.
  std::string missing(const Step& step) const;

 private:
  Result<> check_usable() const;
  Result<> add(bool sending, Rank peer, MessageId id, std::span<const std::byte> bytes,
               std::uint32_t turn, Step& step);
  Result<> refuse_twice(Step& step) const;
  Result<bool> advance();
  void settle(const Half& half);
  void look_for_lost();
  Result<> copy_own(OwnSides& mine, OwnSides& others, OwnSide side, bool sending);
  Result<> post_own(const std::shared_ptr<Step>& step, std::span<const Send> sends,
                    std::span<const Recv> recvs);

  const Rank rank_;
  const int size_;
  ControlPlane* control_;  ///< null after close().
  std::shared_ptr<const cuda::Device> gpu_;
  GroupQueue queue_;
  cuda::Stream own_;  ///< of messages to the own rank.
  const std::size_t segment_bytes_;
  std::uint64_t next_step_ = 0;
  std::deque<std::shared_ptr<Step>> steps_;  ///< in progress, oldest first.
  OwnSides own_sends_, own_recvs_;
  std::vector<Message> messages_;  ///< of one post().
  /// Nothing has moved, with a message to a rank that is gone; until this.
  std::optional<Deadline> lost_since_;
  Deadline next_look_ = Deadline::after(std::chrono::seconds(0));
  std::optional<Error> over_;
};

}  // namespace reshard::nccl
