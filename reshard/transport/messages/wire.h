// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "reshard/transport/messages/wire_address.h"
#include "reshard/transport/transport.h"

namespace reshard {

/// Names a bulk transfer on the side that started it.
using BulkId = StrongInt<struct BulkIdTag, std::uint64_t>;

/// Where a Wire delivers what has happened, from inside poll().
class WireSink {
 public:
  /// A frame from a peer; `frame` lives until the call returns.
  virtual void on_frame(Rank from, std::span<const std::byte> frame) = 0;
  /// A bulk transfer of this rank is over: its memory is the caller's again. An error means that
  /// the peer or the link is gone.
  virtual void on_bulk(BulkId id, Result<> outcome) = 0;
  /// The peer is gone without a word: its process died, its connection broke. For wires that notice
  /// it by themselves; what is said again is ignored.
  virtual void on_gone(Rank peer, Error why) = 0;

 protected:
  ~WireSink() = default;
};

/// What a library must do so that the message engine (engine.h) makes a Transport of it: small
/// frames between any two ranks, and bulk transfers that both sides have agreed on by frames. It
/// knows neither message ids nor deadlines. One object per rank, one thread at a time.
///
/// A bulk goes one of three ways, whichever the wire offers for that memory, first match first:
///   pull   the receiver copies from the sender's memory (describe_source() gave bytes);
///   place  the sender writes into the receiver's memory (describe_target() gave bytes);
///   tagged send_bulk() on one side and recv_bulk() on the other, with the same tag. Always works.
class Wire {
 public:
  /// As close().
  virtual ~Wire() = default;

  virtual std::string_view name() const = 0;
  virtual Rank rank() const = 0;
  virtual int size() const = 0;
  virtual Capabilities capabilities() const = 0;

  /// Bytes of the largest frame, at least 4096.
  virtual std::size_t max_frame() const = 0;

  /// Queues a copy of the frame for a peer, never this rank. Never waits; frames between two ranks
  /// arrive once, whole, and in order. Errors: the peer is gone.
  virtual Result<> send_frame(Rank to, std::span<const std::byte> frame) = 0;
  /// False while frames of this rank get no further without poll() here. An event is done only when
  /// it is true (or after a second): the caller may then call nothing for long, while its peers
  /// wait for what those frames say.
  virtual bool drained() const { return true; }

  /// Starts to send (receive) exactly bytes.size() > 0 bytes; on_bulk(id) tells when they are out
  /// (in). Both sides have the same `tag`, which no other bulk in flight between the two ranks in
  /// this direction has. Both sides call within a bounded time of each other.
  virtual Result<> send_bulk(Rank to, std::uint64_t tag, std::span<const std::byte> bytes,
                             BulkId id) = 0;
  virtual Result<> recv_bulk(Rank from, std::uint64_t tag, std::span<std::byte> bytes,
                             BulkId id) = 0;

  /// By which a peer finds this memory, or empty when it cannot. Cheap: called for every message.
  virtual WireAddress describe_source(Rank to, std::span<const std::byte> bytes);
  virtual WireAddress describe_target(Rank from, std::span<std::byte> bytes);
  /// Copies into.size() bytes that begin at `offset` of the peer's memory and returns. Errors:
  /// `unsupported` when this memory cannot be had this way (any more): the message then goes by one
  /// of the other ways; else the peer is gone.
  virtual Result<> pull(Rank from, std::span<const std::byte> source, std::size_t offset,
                        std::span<std::byte> into);
  /// Ends all that describe_source() gave on this rank: a pull of it that has not returned yet ends
  /// with `unsupported`, so that no peer takes for whole what it reads from now on. A wire that
  /// offers pulling has it.
  virtual void revoke() {}
  /// Starts to write into the peer's memory; on_bulk(id) tells when the bytes are there.
  virtual Result<> put(Rank to, std::span<const std::byte> target, std::span<const std::byte> bytes,
                       BulkId id);

  /// As the calls of Transport; by default `unsupported`.
  virtual Result<RemoteKey> share(std::span<std::byte> memory);
  virtual Result<RemoteMemory> open(Rank owner, const RemoteKey& key);
  virtual Result<> get(const RemoteMemory& from, std::span<const Get> pieces);

  /// Moves what can move without waiting and tells the sink. True when anything happened. Errors
  /// end the wire: only close() may follow.
  virtual Result<bool> poll(WireSink& sink) = 0;

  /// Sleeps until something may have happened or the deadline; may return early, must not spin.
  virtual void idle(Deadline until) = 0;

  /// Gives up all bulks and leaves: afterwards neither the library nor a peer touches this rank's
  /// memory (a wire that cannot promise this says so in docs/transports.md). Never waits long.
  /// Calling it again does nothing.
  virtual void close() = 0;
};

/// The messages of Transport over a wire: matches sends and receives at the receiver before any
/// bulk moves, so that sizes are compared, messages can be withdrawn, and memory is in the
/// library's hands only while both sides agree. Small messages travel inside frames. Asks
/// control.status() as it waits: an abort ends every wait within milliseconds. `control` must
/// outlive the transport.
std::unique_ptr<Transport> make_message_engine(std::unique_ptr<Wire> wire, ControlPlane& control);

}  // namespace reshard
