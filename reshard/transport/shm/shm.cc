// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/shm/shm.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <deque>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "reshard/base/containers/ring_queue.h"
#include "reshard/transport/messages/wire.h"
#include "reshard/transport/shm/peer_memory_map.h"
#include "reshard/transport/shm/peers.h"

namespace reshard::shm {
namespace {

using messages::BulkId;
using messages::WireAddress;
using messages::WireSink;

/// Records that are read from one ring before the next.
constexpr int kRecordsPerTurn = 64;
/// How often a rank checks that the processes of its peers are alive.
constexpr std::chrono::milliseconds kDeathCheckInterval{20};
/// How long close() waits for room in the rings of busy peers. The last frames of a rank are few;
/// they are lost only if a peer does not read for that long.
constexpr std::chrono::milliseconds kCloseTimeout{1000};

/// A wire over mailboxes in shared memory. Bulks go through the slots of the sender's segment.
class ShmWire final : public messages::Wire {
 public:
  ShmWire(Peers peers, Rank rank, std::unique_ptr<GpuPointerQuery> gpu);
  ~ShmWire() override { close(); }

  std::string_view name() const override { return "shm"; }
  Rank rank() const override { return rank_; }
  int size() const override { return static_cast<int>(all_.peers.size()); }
  Capabilities capabilities() const override;
  std::size_t max_frame() const override { return kMaxFrame; }

  Result<> send_frame(Rank to, std::span<const std::byte> frame) override;
  bool drained() const override { return with_outbox_.empty(); }
  Result<> send_bulk(Rank to, std::uint64_t tag, std::span<const std::byte> bytes,
                     BulkId id) override;
  Result<> recv_bulk(Rank from, std::uint64_t tag, std::span<std::byte> bytes, BulkId id) override;
  WireAddress describe_source(Rank to, std::span<const std::byte> bytes) override {
    return reach_.describe(to, bytes);
  }
  Result<> pull(Rank from, std::span<const std::byte> source, std::size_t offset,
                std::span<std::byte> into) override {
    return reach_.pull(from, source, offset, into);
  }
  void revoke() override { mine().revoked().fetch_add(1); }
  Result<RemoteKey> share(std::span<std::byte> memory) override { return reach_.share(memory); }
  Result<RemoteMemory> open(Rank owner, const RemoteKey& key) override {
    return reach_.open(owner, key);
  }
  Result<> get(std::span<const Get> pieces) override { return reach_.get(pieces); }

  Result<bool> poll(WireSink& sink) override;
  void idle(Deadline until) override;
  void close() override;

 private:
  struct Waiting {
    Kind kind;
    std::vector<std::byte> bytes;
  };
  struct Link {
    std::deque<Waiting> outbox;  ///< records that did not fit into the peer's ring.
    bool gone = false;
  };
  struct OutBulk {
    Rank to{};
    std::uint64_t tag = 0;
    std::span<const std::byte> left{};
    BulkId id{};
  };
  struct InBulk {
    Rank from;
    std::uint64_t tag;
    std::span<std::byte> left;
    BulkId id;
  };

  Segment& mine() { return all_.peers[rank_.index()].segment; }
  Segment& segment(Rank rank) { return all_.peers[rank.index()].segment; }
  Result<> alive(Rank peer) const;
  Result<> post(Rank to, Kind kind, std::span<const std::byte> bytes);
  bool empty_outboxes();
  bool empty_outbox(Rank to);
  bool read_rings(WireSink& sink);
  bool read_ring(Rank from, WireSink& sink);
  Result<> take(Rank from, Kind kind, std::span<const std::byte> record, WireSink& sink);
  Result<> take_chunk(Rank from, std::span<const std::byte> record, WireSink& sink);
  bool fill_slots(WireSink& sink);
  void check_for_deaths(WireSink& sink);
  void lose(Rank peer, Error why, WireSink& sink);

  Peers all_;
  const Rank rank_;
  PeerMemoryMap reach_;
  std::vector<Link> links_;
  std::vector<Rank> with_outbox_;
  std::vector<std::uint64_t> pending_;  ///< rings that have more records, as dirty words.
  RingQueue<OutBulk> out_;
  std::vector<InBulk> in_;
  std::optional<Rank> slot_of_[kSlots];  ///< the rank that has yet to empty the slot.
  std::vector<std::byte> record_;
  std::uint32_t polls_ = 0;
  Deadline next_death_check_ = Deadline::after(std::chrono::seconds(0));
  bool closed_ = false;
};

ShmWire::ShmWire(Peers peers, Rank rank, std::unique_ptr<GpuPointerQuery> gpu)
    : all_(std::move(peers)),
      rank_(rank),
      reach_(all_, rank, std::move(gpu)),
      links_(all_.peers.size()),
      pending_(mine().num_words()) {
  record_.reserve(kMaxFrame);
}

Capabilities ShmWire::capabilities() const {
  bool direct = true;
  for (std::size_t r = 0; r < all_.peers.size(); ++r)
    direct &= r == rank_.index() || (all_.peers[r].reach & all_.peers[r].reached_by) != 0;
  return {.message = true, .direct = direct};
}

Result<> ShmWire::alive(Rank peer) const {
  if (!links_[peer.index()].gone) return {};
  return fail(Code::aborted, fmt::format("rank {} is gone", peer.value()));
}

Result<> ShmWire::send_frame(Rank to, std::span<const std::byte> frame) {
  return post(to, Kind::frame, frame);
}

Result<> ShmWire::post(Rank to, Kind kind, std::span<const std::byte> bytes) {
  RESHARD_TRY(alive(to));
  Link& link = links_[to.index()];
  if (link.outbox.empty() && RESHARD_TRY(segment(to).push(rank_, kind, bytes))) {
    segment(to).wake();
    return {};
  }
  if (link.outbox.empty()) with_outbox_.push_back(to);
  link.outbox.push_back({kind, {bytes.begin(), bytes.end()}});
  return {};
}

Result<> ShmWire::send_bulk(Rank to, std::uint64_t tag, std::span<const std::byte> bytes,
                            BulkId id) {
  RESHARD_TRY(alive(to));
  out_.push_back({to, tag, bytes, id});
  return {};
}

Result<> ShmWire::recv_bulk(Rank from, std::uint64_t tag, std::span<std::byte> bytes, BulkId id) {
  RESHARD_TRY(alive(from));
  in_.push_back({from, tag, bytes, id});
  return {};
}

bool ShmWire::empty_outbox(Rank to) {
  Link& link = links_[to.index()];
  bool moved = false;
  while (!link.outbox.empty() && !link.gone) {
    const Result<bool> pushed =
        segment(to).push(rank_, link.outbox.front().kind, link.outbox.front().bytes);
    if (!pushed) link.gone = true;
    if (!pushed || !*pushed) break;
    link.outbox.pop_front();
    moved = true;
  }
  if (link.gone) link.outbox.clear();
  if (!link.outbox.empty()) segment(to).ask_for_room(rank_);
  if (moved) segment(to).wake();
  return moved;
}

bool ShmWire::empty_outboxes() {
  if (with_outbox_.empty()) return false;
  bool moved = false;
  for (const Rank to : with_outbox_) moved |= empty_outbox(to);
  std::erase_if(with_outbox_, [&](Rank to) { return links_[to.index()].outbox.empty(); });
  return moved;
}

bool ShmWire::read_rings(WireSink& sink) {
  bool moved = false;
  for (std::size_t w = 0; w < pending_.size(); ++w) {
    std::uint64_t dirty = std::exchange(pending_[w], 0) | mine().take_dirty(w);
    for (; dirty != 0; dirty &= dirty - 1) {
      const std::size_t r = w * 64 + static_cast<std::size_t>(std::countr_zero(dirty));
      if (r < links_.size() && r != rank_.index())
        moved |= read_ring(Rank(static_cast<int>(r)), sink);
    }
  }
  return moved;
}

bool ShmWire::read_ring(Rank from, WireSink& sink) {
  Link& link = links_[from.index()];
  int taken = 0;
  for (; taken < kRecordsPerTurn && !link.gone; ++taken) {
    Kind kind{};
    const Result<bool> popped = mine().pop(from, kind, record_);
    if (popped && !*popped) break;
    const Result<> good =
        popped ? take(from, kind, record_, sink) : Result<>(tl::unexpected(popped.error()));
    if (!good) {
      lose(from,
           {Code::corrupt, fmt::format("rank {} sent invalid data to rank {}: {}", from.value(),
                                       rank_.value(), good.error().message)},
           sink);
    }
  }
  if (taken == kRecordsPerTurn)
    pending_[from.index() / 64] |= std::uint64_t{1} << from.index() % 64;
  if (taken > 0 && mine().wanted_room(from)) segment(from).wake();
  return taken > 0;
}

Result<> ShmWire::take(Rank from, Kind kind, std::span<const std::byte> record, WireSink& sink) {
  switch (kind) {
    case Kind::frame: sink.on_frame(from, record); return {};
    case Kind::chunk: return take_chunk(from, record, sink);
    case Kind::credit: {
      std::uint32_t slot = kSlots;
      if (record.size() == sizeof slot) std::memcpy(&slot, record.data(), sizeof slot);
      if (slot >= kSlots || slot_of_[slot] != from)
        return fail(Code::corrupt, "a credit for a slot that it does not hold");
      slot_of_[slot].reset();
      return {};
    }
  }
  return fail(Code::corrupt, "a record of an unknown kind");
}

Result<> ShmWire::take_chunk(Rank from, std::span<const std::byte> record, WireSink& sink) {
  Chunk chunk{};
  if (record.size() != sizeof chunk) return fail(Code::corrupt, "a chunk record of the wrong size");
  std::memcpy(&chunk, record.data(), sizeof chunk);
  if (chunk.slot >= kSlots || chunk.bytes == 0 || chunk.bytes > kSlotBytes)
    return fail(Code::corrupt,
                fmt::format("a chunk of {} bytes in slot {}", chunk.bytes, chunk.slot));
  const auto it = std::ranges::find_if(
      in_, [&](const InBulk& b) { return b.from == from && b.tag == chunk.tag; });
  if (it == in_.end() || chunk.bytes > it->left.size())
    return fail(Code::corrupt,
                fmt::format("a chunk of {} bytes that was not expected", chunk.bytes));
  std::memcpy(it->left.data(), segment(from).slot(chunk.slot), chunk.bytes);
  it->left = it->left.subspan(chunk.bytes);
  const BulkId id = it->id;
  const bool whole = it->left.empty();
  if (whole) in_.erase(it);
  const Result<> posted = post(from, Kind::credit, std::as_bytes(std::span(&chunk.slot, 1)));
  if (whole) sink.on_bulk(id, {});
  return posted;
}

/// Stages pieces of the bulks, in turn, in all free slots.
bool ShmWire::fill_slots(WireSink& sink) {
  bool moved = false;
  for (std::uint32_t slot = 0; slot < kSlots && !out_.empty(); ++slot) {
    if (slot_of_[slot]) continue;
    OutBulk bulk = out_.front();
    out_.pop_front();
    const std::size_t bytes = std::min(bulk.left.size(), kSlotBytes);
    std::memcpy(mine().slot(slot), bulk.left.data(), bytes);
    const Chunk chunk{bulk.tag, slot, static_cast<std::uint32_t>(bytes)};
    const Result<> posted = post(bulk.to, Kind::chunk, std::as_bytes(std::span(&chunk, 1)));
    bulk.left = bulk.left.subspan(bytes);
    moved = true;
    if (posted) slot_of_[slot] = bulk.to;
    if (posted && !bulk.left.empty()) {
      out_.push_back(bulk);
    } else {
      sink.on_bulk(bulk.id, posted);
    }
  }
  return moved;
}

Result<bool> ShmWire::poll(WireSink& sink) {
  bool moved = read_rings(sink);
  moved |= empty_outboxes();
  moved |= fill_slots(sink);
  if (++polls_ % 1024 == 0 || !moved) check_for_deaths(sink);
  return moved;
}

void ShmWire::check_for_deaths(WireSink& sink) {
  if (polls_ % 64 != 0 || !next_death_check_.expired()) return;
  next_death_check_ = Deadline::after(kDeathCheckInterval);
  for (std::size_t r = 0; r < links_.size(); ++r) {
    if (r == rank_.index() || links_[r].gone) continue;
    const Rank peer(static_cast<int>(r));
    pollfd p{all_.peers[r].pidfd.get(), POLLIN, 0};
    const bool died = p.fd >= 0 && ::poll(&p, 1, 0) > 0;
    const bool left = segment(peer).closed().load() != 0;
    if (!died && !left) continue;
    // Frames that it sent before it ended still count.
    while (!links_[r].gone && read_ring(peer, sink)) continue;
    const char* how = died ? "is gone: its process ended" : "closed its transport";
    lose(peer, {Code::aborted, fmt::format("rank {} {}", r, how)}, sink);
  }
}

void ShmWire::lose(Rank peer, Error why, WireSink& sink) {
  Link& link = links_[peer.index()];
  if (std::exchange(link.gone, true)) return;
  link.outbox.clear();
  for (auto& slot : slot_of_)
    if (slot == peer) slot.reset();
  std::vector<BulkId> over;
  out_.erase_if([&](const OutBulk& b) {
    if (b.to == peer) over.push_back(b.id);
    return b.to == peer;
  });
  std::erase_if(in_, [&](const InBulk& b) {
    if (b.from == peer) over.push_back(b.id);
    return b.from == peer;
  });
  for (const BulkId id : over) sink.on_bulk(id, tl::unexpected(why));
  sink.on_gone(peer, std::move(why));
}

void ShmWire::idle(Deadline until) {
  const bool more = std::ranges::any_of(pending_, [](std::uint64_t word) { return word != 0; });
  if (more) return;
  polls_ = 63;  // Lets the next poll check for dead peers, if it is time.
  mine().sleep(until);
}

void ShmWire::close() {
  if (std::exchange(closed_, true)) return;
  const Deadline last = Deadline::after(kCloseTimeout);
  while (!with_outbox_.empty() && !last.expired()) {
    for (const Rank to : with_outbox_)
      if (segment(to).closed().load() != 0) links_[to.index()].gone = true;
    if (!empty_outboxes()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  mine().closed().store(1);
  for (std::size_t r = 0; r < all_.peers.size(); ++r)
    if (r != rank_.index()) all_.peers[r].segment.wake();
  out_.clear();
  in_.clear();
  reach_.close();
  for (Peer& peer : all_.peers) peer = Peer{};
}

}  // namespace

Result<std::unique_ptr<Transport>> make_transport(ControlPlane& control,
                                                  const TransportOptions& options) {
  shm::Peers peers = RESHARD_TRY(shm::connect_peers(control, options.deadline));
  auto gpu = RESHARD_TRY(GpuPointerQuery::open_if_any(options.gpu));
  return messages::make_transport(
      std::make_unique<shm::ShmWire>(std::move(peers), control.rank(), std::move(gpu)), control);
}

std::string unavailable_reason() { return unsupported_reason(); }

}  // namespace reshard::shm
