// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>

#include "reshard/transport/transport.h"

namespace reshard::messages {

/// An opaque address of memory, in the form that the wire uses; empty if the wire cannot address
/// the memory. Allocates nothing, because every message has one.
class WireAddress {
 public:
  static constexpr std::size_t kMaxBytes = 64;

  WireAddress() = default;
  /// The bytes of a trivially copyable struct.
  template <class T>
  static WireAddress of(const T& value) {
    static_assert(sizeof value <= kMaxBytes && std::is_trivially_copyable_v<T>);
    WireAddress address;
    std::memcpy(address.bytes_.data(), &value, sizeof value);
    address.size_ = sizeof value;
    return address;
  }

  bool empty() const { return size_ == 0; }
  std::span<const std::byte> bytes() const { return std::span(bytes_).first(size_); }

 private:
  std::array<std::byte, kMaxBytes> bytes_;  // Bytes from size_ on are never read.
  std::uint8_t size_ = 0;
};

/// Identifies a bulk transfer on the side that started it.
using BulkId = StrongInt<struct BulkIdTag, std::uint64_t>;

/// Receives what a Wire delivers. Called from inside Wire::poll().
class WireSink {
 public:
  /// A frame from a peer. `frame` is valid until the call returns.
  virtual void on_frame(Rank from, std::span<const std::byte> frame) = 0;
  /// A bulk transfer of this rank has ended, and its memory belongs to the caller again. An error
  /// means that the peer or the connection is gone.
  virtual void on_bulk(BulkId id, Result<> outcome) = 0;
  /// The peer is gone without a goodbye: its process died or its connection broke. For wires that
  /// notice this themselves. Further calls for the same peer are ignored.
  virtual void on_gone(Rank peer, Error why) = 0;

 protected:
  ~WireSink() = default;
};

/// The interface to a communication library from which make_transport() makes a Transport: small
/// frames between any two ranks, and bulk transfers that both sides have agreed on by frames. A
/// wire knows neither message ids nor deadlines. One object per rank, used by one thread at a time.
///
/// A bulk takes the first of these methods that the wire offers for its memory:
///   pull    the receiver reads the sender's memory (describe_source() returned an address);
///   put     the sender writes the receiver's memory (describe_target() returned an address);
///   tagged  send_bulk() and recv_bulk() with the same tag. Every wire offers this.
///
/// With Capabilities::gpu_messages the library itself reads and writes GPU memory, in bulks of any
/// size, in puts, and in bulks from this rank to itself. It never gets such memory in any other
/// way: see on_gpu().
class Wire {
 public:
  /// Calls close().
  virtual ~Wire() = default;

  virtual std::string_view name() const = 0;
  virtual Rank rank() const = 0;
  virtual int size() const = 0;
  virtual Capabilities capabilities() const = 0;

  /// Size of the largest frame in bytes, at least 4096.
  virtual std::size_t max_frame() const = 0;

  /// Queues a copy of the frame for another rank. Never waits. Frames between two ranks arrive
  /// exactly once, whole and in order. Errors: the peer is gone.
  virtual Result<> send_frame(Rank to, std::span<const std::byte> frame) = 0;
  /// False while frames of this rank need another poll() here to leave. An event completes only
  /// when this is true (or after a second), because its caller may make no further call for long
  /// while peers wait for those frames.
  virtual bool drained() const { return true; }

  /// Starts to send (receive) exactly bytes.size() > 0 bytes; on_bulk(id) is called when they have
  /// been sent (received). Both sides pass the same `tag`, which no other bulk in flight between
  /// the two ranks in this direction has, within a bounded time of each other. The other side is
  /// this rank only for bytes on a GPU.
  virtual Result<> send_bulk(Rank to, std::uint64_t tag, std::span<const std::byte> bytes,
                             BulkId id) = 0;
  virtual Result<> recv_bulk(Rank from, std::uint64_t tag, std::span<std::byte> bytes,
                             BulkId id) = 0;

  /// True if host code must not touch these bytes, because they are in a GPU's memory. Their
  /// message is then put or tagged, whatever its size. Called once for each message that has bytes,
  /// and only with Capabilities::gpu_messages. @pre !bytes.empty()
  virtual bool on_gpu(std::span<const std::byte> bytes) const;

  /// The address by which another rank reads (writes) this memory; empty if it cannot. Cheap:
  /// called for every message. Sources are never on a GPU.
  virtual WireAddress describe_source(Rank to, std::span<const std::byte> bytes);
  virtual WireAddress describe_target(Rank from, std::span<std::byte> bytes);
  /// Copies into.size() bytes from `offset` on of the peer's memory, and returns. Errors:
  /// `unsupported` if this memory cannot be pulled (any more), and the message then takes another
  /// method; any other error means that the peer is gone.
  virtual Result<> pull(Rank from, std::span<const std::byte> source, std::size_t offset,
                        std::span<std::byte> into);
  /// Invalidates every address that describe_source() returned on this rank: a pull that has not
  /// returned yet fails with `unsupported`, so that no peer accepts bytes that it reads from now
  /// on. Required of a wire that offers pull().
  virtual void revoke() {}
  /// Starts to write into the peer's memory; on_bulk(id) is called when the bytes are there.
  virtual Result<> put(Rank to, std::span<const std::byte> target, std::span<const std::byte> bytes,
                       BulkId id);

  /// As the calls of Transport; `unsupported` by default.
  virtual Result<RemoteKey> share(std::span<std::byte> memory);
  virtual Result<RemoteMemory> open(Rank owner, const RemoteKey& key);
  virtual Result<> get(std::span<const Get> pieces);

  /// Makes progress without waiting, and reports it to the sink. True if anything happened. After
  /// an error only close() may follow.
  virtual Result<bool> poll(WireSink& sink) = 0;

  /// Sleeps until something may have happened or the deadline passes. May return early, but must
  /// not spin.
  virtual void idle(Deadline until) = 0;

  /// Cancels all bulks and leaves. Afterwards neither the library nor a peer touches this rank's
  /// memory (docs/transports.md names the wires that cannot promise this). Returns within a bounded
  /// time. Idempotent.
  virtual void close() = 0;
};

/// A Transport that sends its messages over a wire. It matches sends and receives at the receiver
/// before any bulk moves, so that sizes are compared, messages can be withdrawn, and the library
/// holds memory only while both sides agree. Small messages travel inside frames. It checks
/// control.status() while it waits, so that an abort ends every wait within milliseconds. `control`
/// must outlive the transport.
std::unique_ptr<Transport> make_transport(std::unique_ptr<Wire> wire, ControlPlane& control);

}  // namespace reshard::messages
