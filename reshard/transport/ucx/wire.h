// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ucp/api/ucp.h>

#include <algorithm>
#include <chrono>
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

#include "reshard/base/ids.h"
#include "reshard/base/result.h"
#include "reshard/transport/deadline.h"
#include "reshard/transport/gpu_pointer_query.h"
#include "reshard/transport/group.h"
#include "reshard/transport/messages/wire.h"
#include "reshard/transport/ucx/library.h"
#include "reshard/transport/ucx/memory.h"

namespace reshard::ucx {

using messages::BulkId;
using messages::WireSink;

/// The kind of a packet. Packets between two ranks are numbered and delivered in order.
enum class Kind : std::uint32_t {
  frame = 1,  ///< a frame of the wire.
  memory,     ///< SharedMemory::Region::packed.
  hello,      ///< the first packet: the rank can reach the receiver.
  ready,      ///< the rank has received the hello of all.
  bye,        ///< the rank closes: errors of its endpoint do not count from now on.
};

/// Precedes a packet, and a bulk, where the tag takes the place of the number.
struct Header {
  std::uint32_t from = 0;
  Kind kind{};
  std::uint64_t number = 0;  ///< sequence number of a packet, or tag of a bulk.
};

/// The state of one peer.
struct Peer {
  ucp_ep_h endpoint = nullptr;
  std::uint64_t sent = 0, received = 0;  ///< packets.
  std::map<std::uint64_t, std::pair<Kind, std::vector<std::byte>>>
      early;  ///< received out of order, by number.
  std::optional<ucs_status_t> failed;
  std::size_t out = 0;  ///< packets that the library has not taken over yet.
  bool hello = false, ready = false, bye = false;
  /// Each direction has a connection, so packets that a peer sent before it left may arrive after
  /// the other direction failed. A failure therefore counts at goodbye_until, when nothing has
  /// moved for a while, and at the latest at gone_at.
  Deadline goodbye_until = Deadline::never(), gone_at = Deadline::never();
  PeerRegions memory;

  void fail(ucs_status_t status) {
    if (failed) return;
    failed = status;
    gone_at = Deadline::after(std::chrono::seconds(2));
    expect_goodbye();
  }
  void expect_goodbye() {
    goodbye_until = std::min(gone_at, Deadline::after(std::chrono::milliseconds(100)));
  }
};

/// A bulk that this rank expects, or that was announced before recv_bulk().
struct Expected {
  std::span<std::byte> into;
  BulkId id{};
  void* announced = nullptr;  ///< the descriptor of the library, or null.
  std::size_t bytes = 0;      ///< as announced.
};

/// An operation of the library in progress, with the memory that it needs until it ends.
struct Operation {
  enum class What : std::uint8_t { idle, packet, bulk, put, flush };
  class UcxWire* owner = nullptr;
  Peer* to = nullptr;  ///< of a packet.
  What what = What::idle;
  Header header;
  std::vector<std::byte> packet;
  BulkId id{};
  int parts = 0;  ///< pending callbacks; a put has two, for write and flush.
  ucs_status_t status = UCS_OK;
};

/// A wire over UCX: frames are active messages; bulks use rendezvous, or are put into memory that
/// share() registered. With a GPU the library's calls see it as the current one, and are told which
/// memory is where.
class UcxWire final : public messages::Wire {
 public:
  /// Collective. Errors: those of the library on any rank; those of ControlPlane::all_gather().
  static Result<std::unique_ptr<messages::Wire>> make(ControlPlane& control,
                                                      const TransportOptions& options);
  /// `puts`: senders put messages directly into shared memory. `gpu`: of a worker that takes GPU
  /// memory, else null.
  UcxWire(std::unique_ptr<Worker> worker, std::unique_ptr<GpuPointerQuery> gpu, Rank rank, int size,
          bool puts)
      : rank_(rank),
        puts_(puts),
        gpu_(std::move(gpu)),
        worker_(std::move(worker)),
        memory_(worker_->context()),
        peers_(static_cast<std::size_t>(size)) {}
  ~UcxWire() override { close(); }

  /// Connects to all peers and returns once all have connected, so that no connection is closed
  /// before it is complete, which the library does not always survive. Errors: those of the
  /// library; `deadline` names the missing ranks; an abort.
  Result<> connect(std::span<const std::vector<std::byte>> addresses, const ControlPlane& control,
                   Deadline deadline);

  std::string_view name() const override { return "ucx"; }
  Rank rank() const override { return rank_; }
  int size() const override { return static_cast<int>(peers_.size()); }
  Capabilities capabilities() const override {
    return {.message = true, .registers = puts_, .gpu_messages = gpu_ != nullptr};
  }
  std::size_t max_frame() const override;

  Result<> send_frame(Rank to, std::span<const std::byte> frame) override {
    return send_packet(to, Kind::frame, frame);
  }
  bool drained() const override;
  bool on_gpu(std::span<const std::byte> bytes) const override {
    return gpu_ && gpu_->contains(bytes.data());
  }
  Result<> send_bulk(Rank to, std::uint64_t tag, std::span<const std::byte> bytes,
                     BulkId id) override;
  Result<> recv_bulk(Rank from, std::uint64_t tag, std::span<std::byte> bytes, BulkId id) override;
  messages::WireAddress describe_target(Rank from, std::span<std::byte> bytes) override;
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
  bool packets_out() const;
  void flush_packets();
  void take_packets(Rank from, Header header, std::span<const std::byte> bytes);
  void take(Rank from, Kind kind, std::span<const std::byte> bytes);
  bool receive(Expected& expected);
  ucp_request_param_t completion(Operation& operation) const;
  ucs_memory_type_t memory_type(const void* at) const;
  ucp_request_param_t completion(Operation& operation, const void* memory) const;
  bool deliver(WireSink& sink);

  const Rank rank_;
  const bool puts_;
  const std::unique_ptr<GpuPointerQuery> gpu_;
  std::unique_ptr<Worker> worker_;
  SharedMemory memory_;
  std::vector<Peer> peers_;
  bool unflushed_ = false;  ///< packets were sent after the last flush began.
  bool flushing_ = false;
  Deadline sent_by_ = Deadline::never();  ///< when the last packet counts as sent.
  std::deque<Operation> operations_;
  std::vector<Operation*> free_;
  std::map<std::pair<Rank, std::uint64_t>, Expected> expected_;
  std::vector<Outcome> outcomes_;
  std::vector<std::pair<Rank, std::vector<std::byte>>>
      waiting_;  ///< frames before the first poll().
  WireSink* sink_ = nullptr;
  std::optional<Error> broken_;  ///< set if a peer violates the protocol.
};

}  // namespace reshard::ucx
