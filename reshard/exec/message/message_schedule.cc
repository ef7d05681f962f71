// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/message/message_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <tuple>

#include "reshard/base/int128.h"
#include "reshard/exec/direct/delivery_copies.h"
#include "reshard/layout/clip.h"

namespace reshard::message {
namespace {

/// A chunk and its position in the order over the whole group.
struct Keyed {
  std::uint64_t progress = 0;
  Index shift = 0;
  ChunkOp op;
  auto key() const { return std::tuple(progress, shift, op.id, !op.is_send); }
};

/// Makes the ChunkOps of this rank with one peer.
class PairOps {
 public:
  PairOps(const RankBuffers& buffers, Rank me, bool is_send, MessageSchedule& out)
      : buffers_(buffers), me_(me), is_send_(is_send), out_(out) {}

  Result<> check_memory(std::span<const PairPiece> pieces) const {
    for (const PairPiece& piece : pieces)
      if (buffers_.at(me_, side(piece).slot) == nullptr)
        return tl::unexpected(direct::missing_memory(is_send_ ? "source" : "target",
                                                     buffers_.layout(), me_, side(piece).slot));
    return {};
  }

  ChunkOp op(Rank peer, std::size_t index, Index bytes, std::span<const PairPiece> pieces,
             std::span<const ChunkPart> parts) {
    ChunkOp op{peer, is_send_, MessageId(index), bytes, nullptr, out_.tasks.size(), 0};
    if (const Packing& only = side(pieces[parts[0].piece]);
        parts.size() == 1 && only.in_one_run()) {
      op.in_place = buffers_.at(me_, only.slot) + only.copy.src_offset + parts[0].begin;
    } else {
      for (const ChunkPart& part : parts) add_tasks(side(pieces[part.piece]), part);
    }
    op.end_task = out_.tasks.size();
    return op;
  }

 private:
  const Packing& side(const PairPiece& piece) const { return is_send_ ? piece.src : piece.dst; }

  void add_tasks(const Packing& packing, const ChunkPart& part) {
    std::byte* local = buffers_.at(me_, packing.slot);
    clipped_.clear();
    clip_destination(packing.copy, part.begin, part.end, clipped_);
    for (StridedCopy& copy : clipped_) {
      copy.dst_offset += part.at - part.begin;
      const Conversion& pack = packing.conversion;
      out_.tasks.push_back(is_send_
                               ? CopyTask{copy, local, nullptr, pack}
                               : CopyTask{reversed(copy), nullptr, local, {pack.to, pack.from}});
    }
  }

  const RankBuffers& buffers_;
  Rank me_;
  bool is_send_;
  MessageSchedule& out_;
  std::vector<StridedCopy> clipped_;
};

}  // namespace

Result<MessageSchedule> message_schedule(const Planner& planner, const RankPlan& part,
                                         const RankBuffers* source, const RankBuffers* target,
                                         Index world, const ChunkSizes& sizes) {
  MessageSchedule out;
  std::vector<Keyed> keyed;
  for (const bool is_send : {true, false}) {
    const auto& list = is_send ? part.sends : part.recvs;
    const RankBuffers* buffers = is_send ? source : target;
    const ModelLayout& layout = is_send ? planner.source() : planner.target();
    if (!list.empty() && (buffers == nullptr || &buffers->layout() != &layout))
      return fail(Code::invalid_argument,
                  fmt::format("rank {} is part of {} but passed no buffers for it",
                              part.rank.value(), layout.name()));
    for (std::size_t i = 0; i < list.size();) {
      const Rank peer = is_send ? list[i].dst : list[i].src;
      std::size_t end = i;
      while (end < list.size() && (is_send ? list[end].dst : list[end].src) == peer) ++end;
      const auto pieces = RESHARD_TRY(pieces_of(planner, std::span(list).subspan(i, end - i)));
      PairOps ops(*buffers, part.rank, is_send, out);
      RESHARD_TRY(ops.check_memory(pieces));
      const PairChunks pair = program::chunks_of(pieces, sizes);
      const Index difference =
          is_send ? peer.value() - part.rank.value() : part.rank.value() - peer.value();
      for (std::size_t c = 0; c < pair.chunks.size(); ++c) {
        const auto& chunk = pair.chunks[c];
        const auto progress = (static_cast<UInt128>(chunk.before) << 32) /
                              static_cast<UInt128>(std::max<Index>(pair.bytes, 1));
        keyed.push_back({static_cast<std::uint64_t>(progress), (difference % world + world) % world,
                         ops.op(peer, c, chunk.bytes, pieces, pair.parts_of(chunk))});
      }
      i = end;
    }
  }
  std::sort(keyed.begin(), keyed.end(),
            [](const Keyed& a, const Keyed& b) { return a.key() < b.key(); });
  for (const Keyed& k : keyed) out.ops.push_back(k.op);
  return out;
}

}  // namespace reshard::message
