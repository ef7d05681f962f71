// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "reshard/exec/rank_work.h"
#include "reshard/program/compile.h"

namespace reshard::direct {

/// Where the local tensors that a rank shares as a source are in its memory.
struct MemoryTable {
  struct Span {
    RemoteKey key;
    Index bytes = 0;
  };
  struct Place {
    SlotId slot;
    std::size_t span = 0;
    Index offset = 0;  ///< of the tensor's first byte in the span.
  };
  std::vector<Span> spans;
  std::vector<Place> places;  ///< by slot, ascending.
  std::string reason;         ///< why the rank shares nothing; "" if it shares.

  /// Null if the rank does not share this tensor.
  const Place* find(SlotId slot) const;
};

/// Shares the memory of all local tensors that this rank sends from. If the transport cannot share
/// it, the table has only a reason. Errors: a tensor without memory (named); the transport's.
Result<MemoryTable> share_sources(const RankWork& work);

std::vector<std::byte> encode(const MemoryTable& table);

/// Errors: `corrupt`. @post the whole tensor of every place, as `owner` has it in the layout, is
/// inside its span
Result<MemoryTable> decode_memory_table(std::span<const std::byte> bytes, const ModelLayout& layout,
                                        Rank owner);

/// Collective. Sends this rank's table to each rank that reads from it, and returns the tables of
/// the ranks that this rank reads from, by rank. Messages between pairs: no rank receives a table
/// that it does not need.
Result<std::vector<std::pair<Rank, MemoryTable>>> exchange_tables(const RankWork& work,
                                                                  const MemoryTable& mine);

/// Collective. Tells each rank that this rank receives from how it does, and returns how those that
/// receive from this rank do.
Result<std::vector<std::pair<Rank, PairWay>>> exchange_ways(const RankWork& work,
                                                            const std::map<Rank, PairWay>& mine);

}  // namespace reshard::direct
