// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

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
  /// Else what to pack before the send (destination: the staging slot) or unpack after the receive
  /// (source: the staging slot). The slot's address is added to offsets when it is known: the
  /// staging side's pointer is null.
  std::vector<CopyTask> tasks;
};

/// The chunks of one rank in the order in which all ranks handle theirs.
///
/// Each pair's bytes are cut into chunks of at most `chunk_bytes`. Order: by (shift, chunk,
/// direction) where the shift of a message is (dst - src) mod world. The order is one order over
/// all messages of the group, so a rank that handles its chunks in it, any number at once but
/// beginning none before its predecessors, cannot deadlock: the least unfinished message of the
/// group is always begun on both sides.
Result<std::vector<ChunkOp>> message_schedule(const Planner& planner, const RankPlan& part,
                                              const RankBuffers* source, const RankBuffers* target,
                                              Index world, Index chunk_bytes);

}  // namespace reshard
