// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/direct/memory_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "reshard/base/bytes.h"
#include "reshard/base/hash.h"
#include "reshard/cuda/ipc/exported_memory.h"
#include "reshard/plan/locate.h"

namespace reshard::direct {
namespace {

constexpr std::size_t kMaxKey = kMaxGpuMemoryKey;
constexpr std::uint64_t kMaxTable = std::uint64_t{1} << 28;
/// Above all ids of a refit's messages.
constexpr std::uint64_t kSizeId = ~std::uint64_t{0}, kTableId = kSizeId - 1, kWayId = kSizeId - 2,
                        kOpenedId = kSizeId - 3;

std::uint64_t digest_of(std::span<const std::byte> bytes) {
  return hash64({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

/// The peers of transfers that are not relayed. Those that are travel in messages.
std::vector<Rank> peers_of(const std::vector<Transfer>& transfers, Rank Transfer::* peer) {
  std::vector<Rank> out;
  for (const Transfer& t : transfers)
    if (!t.relay.relayed() && (out.empty() || out.back() != t.*peer)) out.push_back(t.*peer);
  return out;
}

/// The local tensors of this rank that the conversion of a source reads.
std::vector<SlotId> slots_read(const RefitConversions& conversions, Rank me) {
  const QuantisedLayout& layout = *conversions.before.layout;
  std::vector<SlotId> slots;
  for (const QuantisedLayout::Pair& pair : layout.pairs) {
    const bool moves = std::ranges::binary_search(conversions.before.slots, pair.values);
    if (!moves || !layout.values->rank_set(layout.values->slot(pair.values).ranks).contains(me))
      continue;
    if (conversions.before.quantises) {
      slots.push_back(pair.values);
    } else {
      for (const SlotId slot : {pair.data, pair.scales, pair.factor})
        if (slot.value() >= 0) slots.push_back(slot);
    }
  }
  std::ranges::sort(slots);
  return slots;
}

std::vector<SlotId> slots_sent(const PrepareArguments& work) {
  if (work.part.sends.empty()) return {};
  // A conversion reads other local tensors than the plan names.
  const auto* conversions = work.hooks.conversions;
  if (conversions != nullptr && conversions->before.layout != nullptr)
    return slots_read(*conversions, work.me());
  std::vector<SlotId> slots;
  for (const Transfer& t : work.part.sends)
    if (t.relay.hop == 0)
      slots.push_back(first_location(work.planner.source(), t.tensor, t.src, t.box).slot);
  std::sort(slots.begin(), slots.end());
  slots.erase(std::unique(slots.begin(), slots.end()), slots.end());
  return slots;
}

/// Sends one message to each of some ranks and receives one from each of others.
Result<> swap(const PrepareArguments& work, std::uint64_t id, std::span<const std::byte> mine,
              std::span<const Rank> to, std::span<const Rank> from,
              std::vector<std::vector<std::byte>>& received) {
  std::vector<Send> sends;
  std::vector<Recv> recvs;
  for (const Rank r : to) sends.push_back({r, MessageId(id), mine});
  for (std::size_t i = 0; i < from.size(); ++i)
    recvs.push_back({from[i], MessageId(id), received[i]});
  auto event = RESHARD_TRY(work.transport.exchange(sends, recvs));
  return event->wait(work.deadline);
}

}  // namespace

const MemoryTable::Place* MemoryTable::find(SlotId slot) const {
  const auto at = std::lower_bound(places.begin(), places.end(), slot,
                                   [](const Place& p, SlotId s) { return p.slot < s; });
  return at == places.end() || at->slot != slot ? nullptr : &*at;
}

std::vector<Rank> readers_of(const PrepareArguments& work) {
  return peers_of(work.part.sends, &Transfer::dst);
}
std::vector<Rank> owners_of(const PrepareArguments& work) {
  return peers_of(work.part.recvs, &Transfer::src);
}

Result<std::vector<SlotId>> sources_of(const PrepareArguments& work) {
  auto slots = slots_sent(work);
  if (slots.empty() || (work.source != nullptr && &work.source->layout() == &work.source_layout()))
    return slots;
  return fail(Code::invalid_argument,
              fmt::format("rank {} is part of {} but passed no buffers for it", work.me().value(),
                          work.source_layout().name()));
}

Result<MemoryTable> share_sources(const PrepareArguments& work) {
  MemoryTable out;
  const auto slots = RESHARD_TRY(sources_of(work));
  if (slots.empty()) return out;
  const auto memory = work.source->memory(work.me());
  std::vector<std::size_t> span_of(memory.size(), memory.size());
  for (const SlotId slot : slots) {
    const std::byte* data = work.source->at(work.me(), slot);
    if (data == nullptr)
      return tl::unexpected(missing_memory("source", work.source_layout(), work.me(), slot));
    const auto after = std::upper_bound(
        memory.begin(), memory.end(), data,
        [](const std::byte* d, std::span<std::byte> m) { return std::less<>()(d, m.data()); });
    const auto m = static_cast<std::size_t>(after - memory.begin()) - 1;
    if (span_of[m] == memory.size()) {
      auto key = work.transport.share(memory[m]);
      if (!key && key.error().code == Code::unsupported)
        return MemoryTable{.reason = key.error().message.substr(0, kMaxRefusal)};
      if (!key) return tl::unexpected(std::move(key).error());
      span_of[m] = out.spans.size();
      out.spans.push_back({*std::move(key), static_cast<Index>(memory[m].size())});
    }
    out.places.push_back({slot, span_of[m], static_cast<Index>(data - memory[m].data())});
  }
  return out;
}

std::vector<std::byte> encode(const MemoryTable& table) {
  ByteWriter out;
  out.text(table.reason);
  out.number(table.gpu_host);
  out.number(table.spans.size());
  for (const auto& span : table.spans) {
    out.text({reinterpret_cast<const char*>(span.key.data()), span.key.size()});
    out.number(static_cast<std::uint64_t>(span.bytes));
  }
  out.number(table.places.size());
  for (const auto& place : table.places) {
    out.number(place.slot.index());
    out.number(place.span);
    out.number(static_cast<std::uint64_t>(place.offset));
  }
  auto bytes = std::move(out).finish();
  const std::uint64_t digest = digest_of(bytes);
  bytes.resize(bytes.size() + sizeof digest);
  std::memcpy(bytes.data() + bytes.size() - sizeof digest, &digest, sizeof digest);
  return bytes;
}

Result<MemoryTable> decode_memory_table(std::span<const std::byte> bytes, const ModelLayout& layout,
                                        Rank owner) {
  // A corrupted address would read other memory of the peer, or none.
  std::uint64_t digest = 0;
  if (bytes.size() < sizeof digest)
    return fail(Code::corrupt, fmt::format("the memory table from rank {}: {} bytes, expected at "
                                           "least {}",
                                           owner.value(), bytes.size(), sizeof digest));
  std::memcpy(&digest, bytes.data() + bytes.size() - sizeof digest, sizeof digest);
  bytes = bytes.first(bytes.size() - sizeof digest);
  if (digest != digest_of(bytes))
    return fail(Code::corrupt, fmt::format("the memory table from rank {}: it was corrupted in "
                                           "transit, its digest is not {}",
                                           owner.value(), hex(digest)));
  ByteReader in(bytes, fmt::format("the memory table from rank {}", owner.value()));
  MemoryTable out;
  constexpr std::uint64_t kMax = std::uint64_t{1} << 60;
  out.reason = std::string(in.text(kMaxRefusal, "reason"));
  out.gpu_host = in.number(~std::uint64_t{0}, "host");
  const std::size_t spans = in.count(2, "spans");
  for (std::size_t i = 0; i < spans && in.ok(); ++i) {
    const std::string_view key = in.text(kMaxKey, "key");
    const auto* data = reinterpret_cast<const std::byte*>(key.data());
    out.spans.push_back(
        {RemoteKey(data, data + key.size()), static_cast<Index>(in.number(kMax, "span's bytes"))});
  }
  const std::size_t places = in.count(3, "local tensors");
  for (std::size_t i = 0; i < places && in.ok(); ++i) {
    const auto slot = in.number(static_cast<std::uint64_t>(layout.num_slots()), "local tensor");
    const auto span = in.number(spans, "span");
    const auto offset = static_cast<Index>(in.number(kMax, "offset"));
    if (!in.ok()) break;
    const SlotId id(static_cast<SlotId::rep>(slot));
    const bool known = slot < static_cast<std::uint64_t>(layout.num_slots()) && span < spans &&
                       layout.rank_set(layout.slot(id).ranks).contains(owner) &&
                       (out.places.empty() || out.places.back().slot < id);
    if (!known) {
      in.fail("a local tensor that the rank does not have, or out of order");
    } else if (offset + bytes_of_local(layout, owner, id) > out.spans[span].bytes) {
      in.fail(fmt::format("local tensor '{}' ends beyond its span", layout.slot(id).name));
    } else {
      out.places.push_back({id, span, offset});
    }
  }
  RESHARD_TRY(in.finish());
  return out;
}

Result<PeerTables> exchange_tables(const PrepareArguments& work, const MemoryTable& mine,
                                   std::span<const Rank> to, std::span<const Rank> from) {
  const auto table = encode(mine);
  const std::uint64_t size = table.size();
  std::vector<std::vector<std::byte>> received(from.size(), std::vector<std::byte>(sizeof size));
  RESHARD_TRY(swap(work, kSizeId, std::as_bytes(std::span(&size, 1)), to, from, received));
  for (std::size_t i = 0; i < from.size(); ++i) {
    std::uint64_t theirs = 0;
    std::memcpy(&theirs, received[i].data(), sizeof theirs);
    if (theirs > kMaxTable)
      return fail(Code::corrupt, fmt::format("the memory table from rank {}: {} bytes, expected at "
                                             "most {}",
                                             from[i].value(), theirs, kMaxTable));
    received[i].assign(theirs, std::byte{});
  }
  RESHARD_TRY(swap(work, kTableId, table, to, from, received));
  PeerTables out;
  for (std::size_t i = 0; i < from.size(); ++i)
    out.emplace_back(from[i],
                     RESHARD_TRY(decode_memory_table(received[i], work.source_layout(), from[i])));
  return out;
}

Result<> confirm_opened(const PrepareArguments& work, std::span<const Rank> owners,
                        std::span<const Rank> readers) {
  const std::byte opened{1};
  std::vector<std::vector<std::byte>> received(readers.size(), std::vector<std::byte>(1));
  return swap(work, kOpenedId, {&opened, 1}, owners, readers, received);
}

Result<std::vector<std::pair<Rank, PairPath>>> exchange_paths(
    const PrepareArguments& work, const std::map<Rank, PairPath>& mine) {
  std::vector<Send> sends;
  for (const auto& [rank, way] : mine)
    sends.push_back({rank, MessageId(kWayId), std::as_bytes(std::span(&way, 1))});
  const auto from = readers_of(work);
  std::vector<std::byte> ways(from.size());
  std::vector<Recv> recvs;
  for (std::size_t i = 0; i < from.size(); ++i)
    recvs.push_back({from[i], MessageId(kWayId), std::span(ways).subspan(i, 1)});
  const auto event = RESHARD_TRY(work.transport.exchange(sends, recvs));
  RESHARD_TRY(event->wait(work.deadline));
  std::vector<std::pair<Rank, PairPath>> out;
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (ways[i] > static_cast<std::byte>(PairPath::message))
      return fail(Code::corrupt, fmt::format("rank {} receives in an unknown way, {}",
                                             from[i].value(), static_cast<int>(ways[i])));
    out.emplace_back(from[i], static_cast<PairPath>(ways[i]));
  }
  return out;
}

}  // namespace reshard::direct
