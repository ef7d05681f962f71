// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "reshard/base/ring_queue.h"
#include "reshard/transport/messages/wire.h"
#include "reshard/transport/shm/peers.h"
#include "reshard/transport/shm/reach.h"

namespace reshard::shm {

/// A wire of mailboxes in shared memory. Bulks go through the slots of the sender's segment.
class ShmWire final : public Wire {
 public:
  ShmWire(Peers peers, Rank rank);
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
  Result<> get(const RemoteMemory& from, std::span<const Get> pieces) override {
    return reach_.get(from, pieces);
  }

  Result<bool> poll(WireSink& sink) override;
  void idle(Deadline until) override;
  void close() override;

 private:
  struct Waiting {
    Kind kind;
    std::vector<std::byte> bytes;
  };
  struct Link {
    std::deque<Waiting> outbox;  ///< what the peer's ring had no room for.
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
  void look_for_the_dead(WireSink& sink);
  void lose(Rank peer, Error why, WireSink& sink);

  Peers all_;
  const Rank rank_;
  Reach reach_;
  std::vector<Link> links_;
  std::vector<Rank> with_outbox_;
  std::vector<std::uint64_t> pending_;  ///< rings that were not read to their end, as dirty words.
  RingQueue<OutBulk> out_;
  std::vector<InBulk> in_;
  std::optional<Rank> slot_of_[kSlots];  ///< who has yet to empty it.
  std::vector<std::byte> record_;
  std::uint32_t polls_ = 0;
  Deadline next_look_ = Deadline::after(std::chrono::seconds(0));
  bool closed_ = false;
};

}  // namespace reshard::shm
