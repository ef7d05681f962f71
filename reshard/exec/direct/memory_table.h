// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "reshard/exec/prepare_arguments.h"
#include "reshard/program/compile.h"

namespace reshard::direct {

/// The memory that a rank shares as a source, and the places of its local tensors there.
struct MemoryTable {
  struct Span {
    RemoteKey key;  ///< of the transport, or of export_gpu_memory(); empty: of an earlier table.
    Index bytes = 0;
  };
  struct Place {
    SlotId slot;
    std::size_t span = 0;
    Index offset = 0;  ///< of the tensor's first byte in the span.
    friend bool operator==(const Place&, const Place&) = default;
  };
  std::vector<Span> spans = {};
  std::vector<Place> places = {};  ///< by slot, ascending.
  std::string reason = {};         ///< why the rank shares nothing; "" if it shares.
  /// If the spans are in the memory of a GPU: gpu_host() of the rank. Otherwise 0.
  std::uint64_t gpu_host = 0;

  /// Null if the rank does not share this tensor.
  const Place* find(SlotId slot) const;
};

/// The longest reason in a table. Bytes.
inline constexpr std::size_t kMaxRefusal = 400;

/// The local tensors that this rank sends from, or that the conversion of its source reads.
/// Ascending. Errors: it has some, but no buffers of the source's layout.
Result<std::vector<SlotId>> sources_of(const PrepareArguments& work);

/// Shares the memory of all local tensors that this rank sends from. If the transport cannot share
/// it, the table has only a reason. Errors: a tensor without memory (named); the transport's.
Result<MemoryTable> share_sources(const PrepareArguments& work);

std::vector<std::byte> encode(const MemoryTable& table);

/// Errors: `corrupt`. @post the whole tensor of every place, as `owner` has it in the layout, is
/// inside its span
Result<MemoryTable> decode_memory_table(std::span<const std::byte> bytes, const ModelLayout& layout,
                                        Rank owner);

/// Each rank that has one, and its table.
using PeerTables = std::vector<std::pair<Rank, MemoryTable>>;
/// The ranks that may read from this one, and those that it may read from. Ascending.
std::vector<Rank> readers_of(const PrepareArguments& work);
std::vector<Rank> owners_of(const PrepareArguments& work);

/// Sends this rank's table to some ranks and receives those of others, which do the same. Messages
/// between pairs: no rank receives a table that it does not need.
Result<PeerTables> exchange_tables(const PrepareArguments& work, const MemoryTable& mine,
                                   std::span<const Rank> to, std::span<const Rank> from);

/// Tells the owners of tables that this rank has opened their keys, and waits until its readers
/// have opened its own.
Result<> confirm_opened(const PrepareArguments& work, std::span<const Rank> owners,
                        std::span<const Rank> readers);

/// Collective. Tells each rank that this rank receives from how it does, and returns how those that
/// receive from this rank do.
Result<std::vector<std::pair<Rank, PairPath>>> exchange_paths(const PrepareArguments& work,
                                                              const std::map<Rank, PairPath>& mine);

}  // namespace reshard::direct
