// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gloo/transport/buffer.h>
#include <gloo/transport/pair.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/transport/deadline.h"

namespace reshard::gloo {

/// The kind of a packet.
enum class Kind : std::uint32_t {
  frame = 1,  ///< a frame of the wire.
  cts,        ///< the receiver is ready for a bulk: tag, slot, size.
  sent,       ///< the bulk with this tag was sent before this packet.
  received,   ///< the bulk with this tag has arrived.
  credit,     ///< carries only Header::acknowledged.
  bye,        ///< the rank closes.
};

/// Precedes the bytes of a packet; Header::number is repeated after them.
struct Header {
  std::uint64_t number = 0;        ///< of the packet, from 1.
  std::uint64_t acknowledged = 0;  ///< packets that the sender has consumed.
  Kind kind{};
  std::uint32_t bytes = 0;
  std::uint64_t tag = 0;
  std::uint64_t size = 0;
  std::int32_t slot = 0;
  std::int32_t reserved = 0;
};

inline constexpr std::size_t kMaxPacket = std::size_t{16} << 10;  ///< bytes without the header.
inline constexpr std::uint64_t kPackets = 32;                     ///< per ring.
/// Reserved for credit packets, so that two full rings cannot wait for each other.
inline constexpr std::uint64_t kForCredit = 2;
inline constexpr std::size_t kSlotBytes = sizeof(Header) + kMaxPacket + sizeof(std::uint64_t);

/// Lets the threads of the links wake the thread of the rank.
struct Notifier {
  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t count = 0;
  void notify() {
    {
      const std::lock_guard lock(mutex);
      ++count;
    }
    changed.notify_all();
  }
};

/// A connection to one peer. The library writes the peer's packets into a ring in this rank's
/// memory. A thread waits for each packet, because the library only offers blocking waits. All
/// members except those of that thread are used by the rank's thread only.
class Link {
 public:
  /// Borrows both arguments.
  Link(::gloo::transport::Pair& pair, Notifier& notifier);
  /// Calls close().
  ~Link() { close(); }
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  /// Starts the thread, which first connects to the peer.
  void start(std::vector<char> address);
  bool connected() const;
  /// Why the connection has ended, if it has.
  std::optional<std::string> ended() const;

  /// Sends a packet, or queues it until the peer has room. Errors: the connection has ended.
  Result<> send(Header header, std::span<const std::byte> bytes);
  /// Sends queued packets while there is room. Acknowledges consumed packets if `acknowledge`, else
  /// from time to time.
  void push(bool acknowledge);
  /// The next received packet, in order. Its bytes are valid until pop().
  struct Packet {
    Header header;
    std::span<const std::byte> bytes;
  };
  std::optional<Packet> front();
  void pop();
  /// True if all packets have been passed to the library, which sends them on its own.
  bool all_sent() const { return queued_.empty(); }
  /// True if the peer has consumed every packet.
  bool all_consumed() const { return queued_.empty() && freed_ == sent_; }

  /// Binds memory to a slot, to receive a bulk. The memory must stay valid while the buffer lives.
  std::unique_ptr<::gloo::transport::Buffer> bind_receive(std::int32_t slot,
                                                          std::span<std::byte> bytes);
  /// Sends a bulk to the peer's slot. The buffer must live until the peer has all bytes, or until
  /// close().
  Result<std::unique_ptr<::gloo::transport::Buffer>> send_bulk(std::int32_t slot,
                                                               std::span<const std::byte> bytes);

  /// Breaks the connection. Afterwards the library touches neither the rings nor the memory of
  /// bulks.
  void close();

 private:
  struct QueuedPacket {
    Header header;
    std::vector<std::byte> bytes;
  };
  void read(const std::vector<char>& address);
  bool room_for(Kind kind) const;
  void write(Header header, std::span<const std::byte> bytes);
  bool has_packet(std::uint64_t number) const;

  ::gloo::transport::Pair& pair_;
  Notifier& notifier_;
  std::vector<std::byte> in_, out_;
  std::unique_ptr<::gloo::transport::Buffer> receiver_, sender_;
  std::deque<QueuedPacket> queued_;
  std::uint64_t sent_ = 0, freed_ = 0;  ///< packets sent, and consumed by the peer.
  std::uint64_t consumed_ = 0,
                acknowledged_ = 0;  ///< packets consumed, and acknowledged to the peer.
  bool closed_ = false;

  mutable std::mutex mutex_;  ///< guards the following.
  std::uint64_t arrived_ = 0;
  bool connected_ = false;
  std::optional<std::string> ended_;
  std::thread reader_;
};

}  // namespace reshard::gloo
