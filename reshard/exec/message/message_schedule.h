// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "reshard/exec/rank_buffers.h"
#include "reshard/plan/planner.h"
#include "reshard/program/pair_chunks.h"
#include "reshard/transform/copy.h"
#include "reshard/transport/transport.h"

namespace reshard::message {

using program::ChunkPart;
using program::ChunkSizes;
using program::PairChunks;

/// One chunk of the bytes between this rank and a peer: one message.
struct ChunkOp {
  Rank peer;
  bool is_send = false;
  MessageId id;
  Index bytes = 0;
  /// Where the chunk is, if it is one run of a local tensor and needs no staging; else null.
  std::byte* in_place = nullptr;
  /// Else: tasks [first_task, end_task) of the schedule pack it before the send, or unpack it after
  /// the receive.
  std::size_t first_task = 0, end_task = 0;
};

/// The chunks of one rank, in the order in which it handles them.
struct MessageSchedule {
  std::vector<ChunkOp> ops;
  /// The staging side's pointer is null, and its offsets are relative to the chunk.
  std::vector<CopyTask> tasks;
};

/// This rank's part of one total order over all messages of the group: by (progress, shift, chunk).
/// `progress` is the fraction of the pair's bytes that precede the chunk, in units of 2^-32;
/// `shift` is (dst - src) mod world. So a rank serves all its peers at the same relative pace,
/// however many bytes each gets, and at each position of the order every rank sends to a different
/// one.
///
/// The messages at one position form a class: a rank has at most one to send and one to receive in
/// it. Ranks that begin their chunks in this order, with room for any two consecutive ones, cannot
/// deadlock: in the least class that is not complete, both sides of each message have begun it.
///
/// Errors: the rank is part of a layout but has no buffers for it, or no memory for a local tensor
/// (named).
Result<MessageSchedule> message_schedule(const Planner& planner, const RankPlan& part,
                                         const RankBuffers* source, const RankBuffers* target,
                                         Index world, const ChunkSizes& sizes);

}  // namespace reshard::message
