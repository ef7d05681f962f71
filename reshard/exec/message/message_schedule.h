// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "reshard/exec/message/pair_chunks.h"
#include "reshard/exec/rank_buffers.h"
#include "reshard/plan/planner.h"
#include "reshard/transform/copy.h"
#include "reshard/transport/transport.h"

namespace reshard {

/// One chunk of the bytes between this rank and a peer.
struct ChunkOp {
  Rank peer;
  bool is_send = false;
  MessageId id;
  Index bytes = 0;
  /// The chunk is one run of a local tensor and needs no staging; else null.
  std::byte* in_place = nullptr;
  /// Else what to pack before the send or unpack after the receive: tasks [first, end) of the
  /// schedule.
  std::size_t first_task = 0, end_task = 0;
};

/// The chunks of one rank in the order in which it handles them.
struct MessageSchedule {
  std::vector<ChunkOp> ops;
  /// The staging side's pointer is null and its offsets count from the chunk's begin.
  std::vector<CopyTask> tasks;
};

/// Every rank's part of one order over all messages of the group: by (progress, shift, chunk),
/// where progress is how much of the pair's bytes comes before the chunk, in fractions of 2^-32,
/// and shift is (dst - src) mod world. So all peers of a rank progress alike, whether they have
/// much or little with it, and in each place of the order every rank sends to another one.
///
/// Messages of one place in the order form a class: a rank has at most one to send and one to
/// receive in it. A rank that begins its chunks in this order, and has room for any two that follow
/// each other at once, cannot deadlock: the least class of the group that is not done has been
/// begun on both sides of each of its messages.
///
/// Errors: a rank takes part in a layout but has no buffers of it, or not of a local tensor
/// (named).
Result<MessageSchedule> message_schedule(const Planner& planner, const RankPlan& part,
                                         const RankBuffers* source, const RankBuffers* target,
                                         Index world, const ChunkSizes& sizes);

}  // namespace reshard
