// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "reshard/exec/rank_path.h"

namespace reshard {

/// Where the local tensors lie that a rank shares as a source.
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
  std::string reason;         ///< why the rank shares nothing; "" when it does.

  /// Null when the rank shares no such tensor.
  const Place* find(SlotId slot) const;
};

/// Shares the memory of all local tensors that this rank sends from. What the transport cannot
/// share becomes the table's reason. Errors: a tensor without memory (named); the transport's.
Result<MemoryTable> share_sources(const RankWork& work);

std::vector<std::byte> encode(const MemoryTable& table);

/// @post every place lies in its span with all of its tensor, as `owner` has it in the layout
/// Errors: `corrupt`.
Result<MemoryTable> decode_memory_table(std::span<const std::byte> bytes, const ModelLayout& layout,
                                        Rank owner);

/// Tells each rank that takes from this one where, and returns what those told that this one takes
/// from, by rank. By messages between the pairs, so that nobody carries what he does not need.
Result<std::vector<std::pair<Rank, MemoryTable>>> exchange_tables(const RankWork& work,
                                                                  const MemoryTable& mine);

}  // namespace reshard
