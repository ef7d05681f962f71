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

/// What a packet brings.
enum class Kind : std::uint32_t {
  frame = 1,  ///< a frame of the wire's user.
  cts,        ///< a bulk may come: tag, slot, bytes.
  sent,       ///< the bulk with this tag has been sent; on the connection it goes before.
  received,   ///< ... and is there.
  credit,     ///< nothing but Header::taken.
  bye,        ///< the rank closes.
};

/// Before a packet's bytes; Header::number comes after them once more.
struct Header {
  std::uint64_t number = 0;  ///< of the packet, from 1.
  std::uint64_t acknowledged =
      0;  ///< packets of the other direction that the sender has done with.
  Kind kind{};
  std::uint32_t bytes = 0;
  std::uint64_t tag = 0;
  std::uint64_t size = 0;
  std::int32_t slot = 0;
  std::int32_t reserved = 0;
};

inline constexpr std::size_t kMaxPacket = std::size_t{16} << 10;  ///< bytes, beside its header.
inline constexpr std::uint64_t kPackets = 32;                     ///< that each ring holds.
/// Kept for packets that only give credit, so that two full rings cannot wait for each other.
inline constexpr std::uint64_t kForCredit = 2;
inline constexpr std::size_t kSlotBytes = sizeof(Header) + kMaxPacket + sizeof(std::uint64_t);

/// Wakes the rank's thread from the threads of its links.
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

/// The connection with one peer. Packets are written by the library into a ring of this rank's
/// memory that the peer fills in turn; a thread waits for each, because the library offers nothing
/// but waiting. Everything but that thread's part is used by the rank's thread alone.
class Link {
 public:
  /// Borrows the pair and the bell.
  Link(::gloo::transport::Pair& pair, Notifier& notifier);
  /// As close().
  ~Link() { close(); }
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  /// Starts the thread, which connects to the peer's pair first.
  void start(std::vector<char> address);
  bool connected() const;
  /// Why the connection has ended, once it has.
  std::optional<std::string> ended() const;

  /// Sends a packet, or keeps it until the peer has room. Errors: the connection has ended.
  Result<> send(Header header, std::span<const std::byte> bytes);
  /// Sends what was kept, as far as there is room, and tells the peer what was taken: now and then,
  /// or now.
  void push(bool acknowledge);
  /// The next packet that has come, in order; its bytes live until pop().
  struct Packet {
    Header header;
    std::span<const std::byte> bytes;
  };
  std::optional<Packet> front();
  void pop();
  /// What was sent is with the library, which brings it out by itself.
  bool nothing_kept() const { return kept_.empty(); }
  /// Every packet has been taken by the peer.
  bool all_taken() const { return kept_.empty() && freed_ == sent_; }

  /// Room for a bulk in memory that is the library's until `taken` is dropped.
  std::unique_ptr<::gloo::transport::Buffer> bind_receive(std::int32_t slot,
                                                          std::span<std::byte> bytes);
  /// Sends a bulk into the peer's slot. The buffer lives until the peer has it, or after close().
  Result<std::unique_ptr<::gloo::transport::Buffer>> send_bulk(std::int32_t slot,
                                                               std::span<const std::byte> bytes);

  /// Breaks the connection: afterwards the library touches neither the rings nor a bulk's memory.
  void close();

 private:
  struct Kept {
    Header header;
    std::vector<std::byte> bytes;
  };
  void read(const std::vector<char>& address);
  bool room_for(Kind kind) const;
  void write(Header header, std::span<const std::byte> bytes);
  bool holds(std::uint64_t number) const;

  ::gloo::transport::Pair& pair_;
  Notifier& notifier_;
  std::vector<std::byte> in_, out_;
  std::unique_ptr<::gloo::transport::Buffer> receiver_, sender_;
  std::deque<Kept> kept_;
  std::uint64_t sent_ = 0, freed_ = 0;          ///< packets out, and those that the peer has taken.
  std::uint64_t taken_ = 0, acknowledged_ = 0;  ///< packets in, and how many the peer knows of.
  bool closed_ = false;

  mutable std::mutex mutex_;  ///< guards what follows.
  std::uint64_t arrived_ = 0;
  bool connected_ = false;
  std::optional<std::string> ended_;
  std::thread reader_;
};

}  // namespace reshard::gloo
