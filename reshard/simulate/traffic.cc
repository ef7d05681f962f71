// SPDX-License-Identifier: Apache-2.0
#include "reshard/simulate/traffic.h"

#include <algorithm>
#include <map>

namespace reshard {
namespace {

using Kind = ProgramBuffer::Kind;

/// Adds up one program after another.
class Adder {
 public:
  explicit Adder(Index ranks) : packed_(static_cast<std::size_t>(ranks), 0), unpacked_(packed_) {}

  void add(const Program& p) {
    for (const ProgramStep& step : p.steps) {
      if (step.kind == ProgramStep::Kind::tile) {
        for (const ProgramOp& op : p.ops_of(step))
          if (op.kind == ProgramOp::Kind::copy || op.kind == ProgramOp::Kind::get)
            for (const ProgramPiece& piece : p.pieces_of(op)) add(p, piece);
      } else if (step.kind == ProgramStep::Kind::exchange) {
        for (const ProgramMessage& m : p.messages_of(step)) {
          if (m.is_send) continue;
          PairTraffic& pair = pairs_[{p.rank, m.peer}];
          pair.bytes += m.bytes;
          ++pair.messages;
        }
      }
    }
  }

  ClusterTraffic finish() && {
    ClusterTraffic traffic{static_cast<Index>(packed_.size()), {}, packed_, unpacked_};
    for (auto& [key, pair] : pairs_) {
      pair.from = key.second;
      pair.to = key.first;
      traffic.pairs.push_back(pair);
    }
    return traffic;
  }

 private:
  void add(const Program& p, const ProgramPiece& piece) {
    const ProgramBuffer& src = p.buffers[piece.src.index()];
    const ProgramBuffer& dst = p.buffers[piece.dst.index()];
    if (src.kind == Kind::source && dst.kind == Kind::target) {
      PairTraffic& pair = pairs_[{p.rank, src.rank}];
      pair.bytes += piece.copy.bytes();
      ++pair.copies;
    } else if (dst.kind == Kind::staging || src.kind == Kind::source) {
      packed_[p.rank.index()] += piece.copy.bytes();
    } else {
      unpacked_[p.rank.index()] += piece.copy.bytes();
    }
  }

  std::map<std::pair<Rank, Rank>, PairTraffic> pairs_;  ///< by (to, from).
  std::vector<Index> packed_, unpacked_;
};

}  // namespace

ClusterTraffic traffic_of(const PlanSummary& plan, const ClusterSpec& cluster,
                          Index message_bytes) {
  ClusterTraffic traffic;
  traffic.ranks = static_cast<Index>(plan.egress.size());
  traffic.packed.assign(plan.egress.size(), 0);
  traffic.unpacked = traffic.packed;
  traffic.pairs.reserve(plan.pairs.size());
  for (const PairBytes& p : plan.pairs) {
    PairTraffic& pair = traffic.pairs.emplace_back();
    pair = {p.src, p.dst, p.bytes, 0, p.transfers, p.hop};
    if (p.hops == 0 && cluster.reads(p.src, p.dst)) continue;
    pair.messages = std::max<Index>(1, (p.bytes + message_bytes - 1) / message_bytes);
    traffic.packed[p.src.index()] += p.bytes;
    traffic.unpacked[p.dst.index()] += p.bytes;
  }
  return traffic;
}

ClusterTraffic traffic_of(std::span<const Program> programs) {
  Adder adder(static_cast<Index>(programs.size()));
  for (const Program& p : programs) adder.add(p);
  return std::move(adder).finish();
}

}  // namespace reshard
