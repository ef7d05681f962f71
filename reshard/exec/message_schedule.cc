// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/message_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <tuple>

#include "reshard/exec/clip.h"
#include "reshard/plan/moves.h"

namespace reshard {
namespace {

/// Key of a chunk in the order over the whole group.
struct Keyed {
  Index shift, chunk;
  ChunkOp op;
};

/// The chunks of the bytes between this rank and one peer.
class PeerChunks {
 public:
  PeerChunks(const Planner& planner, const RankBuffers& buffers, Rank me, Rank peer, bool is_send,
             Index chunk_bytes)
      : planner_(planner),
        buffers_(buffers),
        me_(me),
        peer_(peer),
        is_send_(is_send),
        chunk_bytes_(chunk_bytes) {}

  Result<> make(std::span<const Transfer> transfers, Index shift, std::vector<Keyed>& out) {
    const auto packing = RESHARD_TRY(packing_of(planner_, is_send_, me_, transfers));
    Index total = 0;
    for (const Packing& p : packing) {
      if (buffers_.at(me_, p.slot) == nullptr)
        return fail(Code::invalid_argument,
                    fmt::format("{} buffer of local tensor '{}' on rank {} is not set",
                                is_send_ ? "source" : "target", buffers_.layout().slot(p.slot).name,
                                me_.value()));
      total = std::max(total, destination_span(p.copy).end());
    }
    std::size_t from = 0;
    for (Index begin = 0; begin < total; begin += chunk_bytes_) {
      const Index end = std::min(total, begin + chunk_bytes_);
      while (destination_span(packing[from].copy).end() <= begin) ++from;
      out.push_back({shift, begin / chunk_bytes_, chunk(packing, from, begin, end)});
    }
    return {};
  }

 private:
  ChunkOp chunk(const std::vector<Packing>& packing, std::size_t from, Index begin,
                Index end) const {
    ChunkOp op{peer_,       is_send_, MessageId(static_cast<std::uint64_t>(begin / chunk_bytes_)),
               end - begin, nullptr,  {}};
    std::vector<StridedCopy> parts;
    for (std::size_t i = from; i < packing.size() && packing[i].copy.dst_offset < end; ++i) {
      std::byte* local = buffers_.at(me_, packing[i].slot);
      parts.clear();
      clip_destination(packing[i].copy, begin, end, parts);
      for (StridedCopy& part : parts) {
        part.dst_offset -= begin;
        const Conversion& pack = packing[i].conversion;
        if (part.num_loops == 0 && part.run_bytes == op.bytes && !pack.converts())
          op.in_place = local + part.src_offset;
        op.tasks.push_back(is_send_
                               ? CopyTask{part, local, nullptr, pack}
                               : CopyTask{reversed(part), nullptr, local, {pack.to, pack.from}});
      }
    }
    if (op.in_place != nullptr) op.tasks.clear();
    return op;
  }

  const Planner& planner_;
  const RankBuffers& buffers_;
  Rank me_, peer_;
  bool is_send_;
  Index chunk_bytes_;
};

}  // namespace

Result<std::vector<ChunkOp>> message_schedule(const Planner& planner, const RankPlan& part,
                                              const RankBuffers* source, const RankBuffers* target,
                                              Index world, Index chunk_bytes) {
  std::vector<Keyed> keyed;
  for (const bool is_send : {true, false}) {
    const auto& list = is_send ? part.sends : part.recvs;
    const RankBuffers* buffers = is_send ? source : target;
    const ModelLayout& layout = is_send ? planner.source() : planner.target();
    if (!list.empty() && (buffers == nullptr || &buffers->layout() != &layout))
      return fail(Code::invalid_argument,
                  fmt::format("rank {} takes part in {} but gave no buffers of it",
                              part.rank.value(), layout.name()));
    for (std::size_t i = 0; i < list.size();) {
      const Rank peer = is_send ? list[i].dst : list[i].src;
      std::size_t end = i;
      while (end < list.size() && (is_send ? list[end].dst : list[end].src) == peer) ++end;
      const Index difference =
          is_send ? peer.value() - part.rank.value() : part.rank.value() - peer.value();
      PeerChunks chunks(planner, *buffers, part.rank, peer, is_send, chunk_bytes);
      RESHARD_TRY(chunks.make(std::span(list).subspan(i, end - i),
                              (difference % world + world) % world, keyed));
      i = end;
    }
  }
  std::stable_sort(keyed.begin(), keyed.end(), [](const Keyed& a, const Keyed& b) {
    return std::tuple(a.shift, a.chunk, !a.op.is_send) <
           std::tuple(b.shift, b.chunk, !b.op.is_send);
  });
  std::vector<ChunkOp> ops;
  for (Keyed& k : keyed) ops.push_back(std::move(k.op));
  return ops;
}

}  // namespace reshard
