// SPDX-License-Identifier: Apache-2.0
// Small clusters, traffic and programs, for cases that one can work out by hand.
#pragma once

#include <vector>

#include "reshard/simulate/simulate.h"

namespace reshard {

inline constexpr Index kGigabyte = 1'000'000'000;

/// Hosts of one rank and one NIC of 1 GB/s; nothing else takes time.
inline ClusterSpec plain_cluster() {
  ClusterSpec cluster;
  cluster.name = "test";
  cluster.nics.bytes_per_second = 1e9;
  return cluster;
}

inline PairTraffic sent(int from, int to, Index bytes, Index messages = 1) {
  return {Rank(from), Rank(to), bytes, messages, 0};
}
inline PairTraffic read_by(int to, int from, Index bytes) {
  return {Rank(from), Rank(to), bytes, 0, 0};
}

inline ClusterTraffic traffic(Index ranks, std::vector<PairTraffic> pairs) {
  const std::vector<Index> none(static_cast<std::size_t>(ranks), 0);
  return {ranks, std::move(pairs), none, none};
}

/// A program, step by step. Sizes in bytes; waits are numbers of earlier steps.
class ProgramSteps {
 public:
  explicit ProgramSteps(int rank) {
    program_.rank = Rank(rank);
    program_.buffers = {{ProgramBuffer::Kind::staging, Rank(0), SlotId(0), 0},
                        {ProgramBuffer::Kind::target, Rank(rank), SlotId(0), 0}};
    program_.first_wait = {0};
  }
  /// Copies from the source of a rank.
  ProgramSteps& tile(int from, Index bytes, std::vector<std::uint32_t> waits = {}) {
    ProgramPiece piece;
    piece.copy.run_bytes = bytes;
    piece.src = BufferId(static_cast<std::uint32_t>(program_.buffers.size()));
    piece.dst = BufferId(1);
    program_.buffers.push_back({ProgramBuffer::Kind::source, Rank(from), SlotId(0), bytes});
    const auto n = static_cast<std::uint32_t>(program_.pieces.size());
    program_.pieces.push_back(piece);
    const auto op = static_cast<std::uint32_t>(program_.ops.size());
    program_.ops.push_back({ProgramOp::Kind::copy, false, n, n + 1});
    return step({ProgramStep::Kind::tile, op, op + 1, bytes, bytes}, waits);
  }
  ProgramSteps& send(int to, std::uint64_t id, Index bytes, std::vector<std::uint32_t> waits = {}) {
    return message({Rank(to), id, true, {}, bytes}, waits);
  }
  ProgramSteps& receive(int from, std::uint64_t id, Index bytes,
                        std::vector<std::uint32_t> waits = {}) {
    return message({Rank(from), id, false, {}, bytes}, waits);
  }
  ProgramSteps& barrier(std::vector<std::uint32_t> waits = {}) {
    return step({ProgramStep::Kind::barrier, 0, 0, 0, 0}, waits);
  }
  Program done() const { return program_; }

 private:
  ProgramSteps& message(const ProgramMessage& message, const std::vector<std::uint32_t>& waits) {
    const auto m = static_cast<std::uint32_t>(program_.messages.size());
    program_.messages.push_back(message);
    return step({ProgramStep::Kind::exchange, m, m + 1, message.bytes, 0}, waits);
  }
  ProgramSteps& step(const ProgramStep& step, const std::vector<std::uint32_t>& waits) {
    program_.steps.push_back(step);
    for (const std::uint32_t w : waits) program_.waits.push_back(StepId(w));
    program_.first_wait.push_back(static_cast<std::uint32_t>(program_.waits.size()));
    return *this;
  }
  Program program_;
};

}  // namespace reshard
