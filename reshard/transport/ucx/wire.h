// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "reshard/transport/group.h"
#include "reshard/transport/messages/wire.h"
#include "reshard/transport/ucx/library.h"
#include "reshard/transport/ucx/link.h"

namespace reshard::ucx {

/// A wire over UCX: frames are active messages, bulks go by rendezvous, or are put into memory that
/// share() registered.
class UcxWire final : public Wire {
 public:
  /// Collective. Errors: what the library says, of this rank or of another; those of
  /// ControlPlane::all_gather().
  static Result<std::unique_ptr<Wire>> make(ControlPlane& control, const TransportOptions& options);
  /// `puts`: what is shared is received by the sender's puts.
  UcxWire(std::unique_ptr<Worker> worker, Rank rank, int size, bool puts)
      : rank_(rank),
        puts_(puts),
        worker_(std::move(worker)),
        memory_(worker_->context()),
        peers_(static_cast<std::size_t>(size)) {}
  ~UcxWire() override { close(); }

  /// Connects to all and returns once all have: no peer can leave, and no connection be closed,
  /// before it was made, which the library does not always survive. Errors: what the library says;
  /// `deadline` names who is missing; an abort.
  Result<> connect(std::span<const std::vector<std::byte>> addresses, const ControlPlane& control,
                   Deadline deadline);

  std::string_view name() const override { return "ucx"; }
  Rank rank() const override { return rank_; }
  int size() const override { return static_cast<int>(peers_.size()); }
  Capabilities capabilities() const override { return {.message = true, .registers = puts_}; }
  std::size_t max_frame() const override;

  Result<> send_frame(Rank to, std::span<const std::byte> frame) override {
    return send_packet(to, Kind::frame, frame);
  }
  bool drained() const override;
  Result<> send_bulk(Rank to, std::uint64_t tag, std::span<const std::byte> bytes,
                     BulkId id) override;
  Result<> recv_bulk(Rank from, std::uint64_t tag, std::span<std::byte> bytes, BulkId id) override;
  reshard::WireAddress describe_target(Rank from, std::span<std::byte> bytes) override;
  Result<> put(Rank to, std::span<const std::byte> target, std::span<const std::byte> bytes,
               BulkId id) override;
  Result<RemoteKey> share(std::span<std::byte> memory) override;
  Result<bool> poll(WireSink& sink) override;
  void idle(Deadline until) override;
  void close() override;

 private:
  struct Outcome {
    BulkId id;
    Result<> result;
  };

  static ucs_status_t on_packet(void* self, const void* header, std::size_t header_bytes,
                                void* data, std::size_t bytes, const ucp_am_recv_param_t* param);
  static ucs_status_t on_bulk(void* self, const void* header, std::size_t header_bytes, void* data,
                              std::size_t bytes, const ucp_am_recv_param_t* param);
  static void on_failed(void* peer, ucp_ep_h, ucs_status_t status);
  static void on_sent(void* request, ucs_status_t status, void* operation);
  static void on_received(void* request, ucs_status_t status, std::size_t, void* operation);

  Error gone(Rank peer) const;
  Result<> reachable(Rank peer) const;
  Operation& begin(Operation::What what, int parts);
  void part_over(Operation& operation, ucs_status_t status);
  void posted(Operation& operation, ucs_status_ptr_t request);
  Result<> await(bool Peer::* greeting, const ControlPlane& control, Deadline deadline);
  Result<> send_packet(Rank to, Kind kind, std::span<const std::byte> bytes);
  void flush(Peer& peer);
  void take_packets(Rank from, Header header, std::span<const std::byte> bytes);
  void take(Rank from, Kind kind, std::span<const std::byte> bytes);
  bool receive(Expected& expected);
  ucp_request_param_t completion(Operation& operation) const;
  bool deliver(WireSink& sink);

  const Rank rank_;
  const bool puts_;
  std::unique_ptr<Worker> worker_;
  SharedMemory memory_;
  std::vector<Peer> peers_;
  std::deque<Operation> operations_;
  std::vector<Operation*> free_;
  std::map<std::pair<Rank, std::uint64_t>, Expected> expected_;
  std::vector<Outcome> outcomes_;
  std::vector<std::pair<Rank, std::vector<std::byte>>> waiting_;  ///< frames before the first poll.
  WireSink* sink_ = nullptr;
  std::optional<Error> broken_;  ///< by a peer that says what it must not.
};

}  // namespace reshard::ucx
