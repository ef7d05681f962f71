// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/direct/pair_paths.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "reshard/exec/device/rank_memory.h"
#include "reshard/exec/rank_refit_hooks.h"
#include "reshard/plan/moves.h"
#include "reshard/program/get_costs.h"

namespace reshard::direct {
namespace {

/// Messages are used instead if reading costs this many times more. Where the model says 1.6 times
/// (half of each row of 1536 bytes), both took the same time.
constexpr double kMaxTimes = 2;
constexpr std::size_t kMaxReason = 400;

/// How many times as much as messages it costs to read these transfers from one peer by get().
Result<double> cost_of_reading(const PrepareArguments& work, std::span<const Transfer> transfers) {
  double reads = 0, messages = 0;
  const auto moves = RESHARD_TRY(copy_ops(work.planner, transfers));
  for (const Move& m : moves) {
    reads += program::cost_of_get(m.copy);
    messages += program::cost_of_message(m.copy, work.options.in_place_bytes);
  }
  return reads / std::max(messages, 1.0);
}

}  // namespace

Result<PairPaths> PairPaths::agree(const PrepareArguments& work, bool reaches) {
  PairPaths out;
  for (const Rank r : owners_of(work)) out.from_[r] = PairPath::message;
  for (const Rank r : readers_of(work)) out.to_[r] = PairPath::message;
  out.uses_[static_cast<std::size_t>(PairPath::message)] = work.planner.uses_relays();
  if (work.options.path == RefitPath::message) {
    out.uses_[static_cast<std::size_t>(PairPath::message)] = true;
    return out;
  }
  if (!reaches) {
    out.uses_[static_cast<std::size_t>(PairPath::message)] = true;
    out.reason_ =
        fmt::format("transport {} cannot reach peers' memory on any rank", work.transport.name());
    return out;
  }
  RESHARD_TRY(out.open_peers(work));
  RESHARD_TRY(out.choose(work));
  RESHARD_TRY(out.tell(work));
  RESHARD_TRY(out.summarise(work));
  out.gpu_sources_.close_files();
  return out;
}

void PairPaths::refuse(Rank src, const std::string& reason) {
  from_[src] = PairPath::message;
  if (reason_.empty()) reason_ = reason;
}

Result<MemoryTable> PairPaths::share(const PrepareArguments& work) {
  if (work.source != nullptr && work.source->device() != nullptr) return gpu_sources_.share(work);
  if (work.transport.capabilities().direct) return share_sources(work);
  return MemoryTable{
      .reason = fmt::format("transport {} cannot reach peers' memory", work.transport.name())};
}

/// "", or why the peer's memory cannot be opened.
Result<std::string> PairPaths::open(const PrepareArguments& work, Rank rank, MemoryTable table) {
  const bool on_gpu = gpu_of(work.source, work.target) != nullptr;
  if (!on_gpu && !work.transport.capabilities().direct)
    return fmt::format("transport {} cannot reach peers' memory", work.transport.name());
  if (!table.reason.empty())
    return fmt::format("rank {} cannot share its memory: {}", rank.value(), table.reason);
  if (table.gpu_host != 0 && on_gpu) return open_on_gpu(work, rank, std::move(table));
  if (table.gpu_host == 0 && !on_gpu) return open_on_host(work, rank, std::move(table));
  if (on_gpu) return fmt::format("its memory is on a GPU, that of rank {} is not", rank.value());
  return fmt::format("the memory of rank {} is on a GPU", rank.value());
}

Result<std::string> PairPaths::open_on_gpu(const PrepareArguments& work, Rank rank,
                                           MemoryTable table) {
  Peer peer{std::move(table), {}, {}};
  std::string why =
      RESHARD_TRY(peer.on_gpu.open(gpu_of(work.source, work.target), rank, peer.table));
  if (!why.empty()) return why;
  peer.memory = peer.on_gpu.memory(rank);
  from_[rank] = PairPath::mapped;
  peers_.emplace(rank, std::move(peer));
  return std::string();
}

Result<std::string> PairPaths::open_on_host(const PrepareArguments& work, Rank rank,
                                            MemoryTable table) {
  Peer peer{std::move(table), {}, {}};
  bool mapped = true;
  for (const auto& span : peer.table.spans) {
    auto opened = work.transport.open(rank, span.key);
    if (!opened && opened.error().code == Code::unsupported)
      return std::move(opened).error().message;
    if (!opened) return tl::unexpected(std::move(opened).error());
    if (opened->size < static_cast<std::size_t>(span.bytes))
      return fail(Code::corrupt, fmt::format("rank {} shared {} bytes but announced {}",
                                             rank.value(), opened->size, span.bytes));
    mapped = mapped && opened->address != nullptr;
    peer.memory.push_back(*opened);
  }
  from_[rank] = mapped ? PairPath::mapped : PairPath::get;
  peers_.emplace(rank, std::move(peer));
  return std::string();
}

Result<> PairPaths::open_peers(const PrepareArguments& work) {
  const MemoryTable mine = RESHARD_TRY(share(work));
  auto tables = RESHARD_TRY(exchange_tables(work, mine, readers_of(work), owners_of(work)));
  for (auto& [rank, table] : tables) {
    const std::string why = RESHARD_TRY(open(work, rank, std::move(table)));
    if (!why.empty()) refuse(rank, why);
  }
  return {};
}

Result<bool> PairPaths::renew(const PrepareArguments& work) {
  std::vector<Rank> readers, owners;
  const bool shares = work.source != nullptr && work.source->device() != nullptr;
  for (const Rank r : readers_of(work))
    if (shares && to_.at(r) == PairPath::mapped) readers.push_back(r);
  for (const Rank r : owners_of(work))
    if (peers_.contains(r) && peers_.at(r).table.gpu_host != 0) owners.push_back(r);
  MemoryTable mine;
  if (!readers.empty()) mine = RESHARD_TRY(gpu_sources_.share(work));
  auto tables = RESHARD_TRY(exchange_tables(work, mine, readers, owners));
  bool moved = false;
  for (auto& [rank, table] : tables) moved |= RESHARD_TRY(reopen(work, rank, std::move(table)));
  RESHARD_TRY(confirm_opened(work, owners, readers));
  gpu_sources_.close_files();
  return moved;
}

/// True if a tensor has another address here.
Result<bool> PairPaths::reopen(const PrepareArguments& work, Rank rank, MemoryTable table) {
  Peer& peer = peers_.at(rank);
  std::string why = table.reason;
  if (why.empty())
    why = RESHARD_TRY(peer.on_gpu.open(gpu_of(work.source, work.target), rank, table));
  if (!why.empty())
    return fail(Code::unsupported,
                fmt::format("the memory of rank {} changed, and cannot be read any more: {}",
                            rank.value(), why));
  const auto before = std::exchange(peer.memory, peer.on_gpu.memory(rank));
  const bool moved =
      !(table.places == peer.table.places) ||
      !std::ranges::equal(before, peer.memory, {}, &RemoteMemory::address, &RemoteMemory::address);
  peer.table = std::move(table);
  return moved;
}

Result<> PairPaths::choose(const PrepareArguments& work) {
  if (work.options.path != RefitPath::automatic) return {};
  if (work.hooks.conversions != nullptr) {
    for (auto& [src, way] : from_)
      if (way == PairPath::get)
        refuse(src, fmt::format("conversions of memory that is not mapped, like that of rank {}, "
                                "are faster with messages",
                                src.value()));
    return {};
  }
  std::vector<Transfer> recvs;
  std::ranges::copy_if(work.part.recvs, std::back_inserter(recvs),
                       [](const Transfer& t) { return !t.relay.relayed(); });
  for (std::size_t i = 0, end = 0; i < recvs.size(); i = end) {
    for (end = i; end < recvs.size() && recvs[end].src == recvs[i].src;) ++end;
    if (from_[recvs[i].src] != PairPath::get) continue;
    const double times = RESHARD_TRY(cost_of_reading(work, std::span(recvs).subspan(i, end - i)));
    if (times > kMaxTimes)
      refuse(recvs[i].src,
             fmt::format("reading the memory of rank {}, which is not mapped, in runs this short "
                         "costs {:.1f} times as much as messages",
                         recvs[i].src.value(), times));
  }
  return {};
}

/// Each receiver tells its senders.
Result<> PairPaths::tell(const PrepareArguments& work) {
  const auto ways = RESHARD_TRY(exchange_paths(work, from_));
  for (const auto& [rank, way] : ways) to_[rank] = way;
  return {};
}

Result<> PairPaths::summarise(const PrepareArguments& work) {
  for (const auto& [rank, way] : from_) uses_[static_cast<std::size_t>(way)] = true;
  std::string mine;
  for (const bool used : uses_) mine += used ? '1' : '0';
  mine += reason_.substr(0, kMaxReason);
  reason_.clear();
  const auto all =
      RESHARD_TRY(work.control.all_gather(std::as_bytes(std::span(mine)), work.deadline));
  for (std::size_t r = 0; r < all.size(); ++r) {
    const std::string_view theirs(reinterpret_cast<const char*>(all[r].data()), all[r].size());
    if (theirs.size() < std::size(uses_) || theirs.size() > std::size(uses_) + kMaxReason)
      return fail(Code::corrupt,
                  fmt::format("the ways of rank {} have {} bytes", r, theirs.size()));
    for (std::size_t w = 0; w < std::size(uses_); ++w) uses_[w] |= theirs[w] == '1';
    const std::string_view reason = theirs.substr(std::size(uses_));
    if (reason_.empty() && !reason.empty()) reason_ = fmt::format("rank {}: {}", r, reason);
  }
  if (reason_.empty() && work.planner.uses_relays())
    reason_ = "ranks relay what they receive, which travels in messages";
  return {};
}

Result<host::BufferPlace> PairPaths::place(const PrepareArguments& work, Rank r,
                                           SlotId slot) const {
  const auto peer = peers_.find(r);
  const auto* place = peer == peers_.end() ? nullptr : peer->second.table.find(slot);
  if (place == nullptr)
    return fail(Code::corrupt, fmt::format("rank {} did not share its local tensor '{}'", r.value(),
                                           work.source_layout().slot(slot).name));
  const RemoteMemory& memory = peer->second.memory[place->span];
  std::byte* const address = memory.address == nullptr ? nullptr : memory.address + place->offset;
  return host::BufferPlace{address, &memory, place->offset};
}

}  // namespace reshard::direct
