// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gloo/transport/context.h>
#include <gloo/transport/device.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "reshard/transport/gloo/link.h"
#include "reshard/transport/group.h"
#include "reshard/transport/messages/wire.h"

namespace reshard::gloo {

/// A wire over Gloo's TCP transport, with one connection and one thread per peer.
class GlooWire final : public messages::Wire {
 public:
  /// Collective. Errors: `invalid_argument` for an unknown interface; `deadline` names the ranks
  /// that did not connect; errors of the library on any rank; those of ControlPlane::all_gather().
  static Result<std::unique_ptr<messages::Wire>> make(ControlPlane& control,
                                                      const TransportOptions& options);
  ~GlooWire() override { close(); }

  std::string_view name() const override { return "gloo"; }
  Rank rank() const override { return rank_; }
  int size() const override { return static_cast<int>(peers_.size()); }
  Capabilities capabilities() const override { return {.message = true}; }
  std::size_t max_frame() const override { return kMaxPacket; }

  Result<> send_frame(Rank to, std::span<const std::byte> frame) override;
  bool drained() const override;
  Result<> send_bulk(Rank to, std::uint64_t tag, std::span<const std::byte> bytes,
                     messages::BulkId id) override;
  Result<> recv_bulk(Rank from, std::uint64_t tag, std::span<std::byte> bytes,
                     messages::BulkId id) override;
  Result<bool> poll(messages::WireSink& sink) override;
  void idle(Deadline until) override;
  void close() override;

 private:
  using Buffer = std::unique_ptr<::gloo::transport::Buffer>;
  /// A bulk of this rank, by its tag.
  struct Bulk {
    std::span<const std::byte> bytes;
    messages::BulkId id{};
    Buffer buffer;  ///< null until the transfer starts.
  };
  struct RecvSlot {
    std::int32_t slot = 0;
    std::uint64_t size = 0;
  };
  struct Peer {
    std::unique_ptr<Link> link;  ///< null for this rank itself.
    std::map<std::uint64_t, Bulk> out, in;
    std::map<std::uint64_t, RecvSlot> recv_slots;  ///< received before send_bulk().
    bool bye = false, retired = false;
  };

  GlooWire(Rank rank, int size) : rank_(rank), peers_(static_cast<std::size_t>(size)) {}
  /// Listens for each peer and returns the addresses. Errors: those of the library.
  Result<std::vector<std::byte>> listen();
  Result<> connect(std::span<const std::vector<std::byte>> addresses, const ControlPlane& control,
                   Deadline deadline);
  Result<> await_all(const ControlPlane& control, Deadline deadline);
  bool take(Rank from, Peer& peer, messages::WireSink* sink);
  Result<> take_one(Rank from, Peer& peer, const Link::Packet& packet, messages::WireSink* sink);
  Result<> start_send(Rank to, std::uint64_t tag, Bulk& bulk, RecvSlot slot);
  void retire(Rank rank, Peer& peer, messages::WireSink& sink);

  const Rank rank_;
  Notifier notifier_;
  std::shared_ptr<::gloo::transport::Device> device_;
  std::shared_ptr<::gloo::transport::Context> context_;
  std::vector<Peer> peers_;
  std::int32_t next_slot_ = 1;
  std::uint64_t seen_ = 0;  ///< the last seen notifier_.count.
  std::optional<Error> broken_;
  bool closed_ = false;
};

}  // namespace reshard::gloo
