// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/transport/messages/wire.h"

namespace reshard::messages {

/// The kind of a record. `token` identifies the message on the sender, `recv_token` on the
/// receiver; each side sends back the other's token.
enum class Kind : std::uint8_t {
  payload = 1,  ///< an eager message: token, id; tail: the bytes.
  rts,          ///< request to send: token, id, bytes; `detail`: 1 if the bytes are on a GPU;
                ///< tail: the address to pull from, or empty.
  retry,        ///< the receiver cannot pull, or take eager bytes: send an RTS without: token.
  cts,          ///< clear to send: token, recv_token, tag; `detail`: a Method; tail: where to put.
  data,         ///< the bytes of a `framed` message: recv_token; tail: the bytes.
  put_done,     ///< the put has completed: recv_token.
  done,         ///< the receiver has all bytes: token.
  refuse,       ///< the receiver rejects the message: token; `detail`: a Code; tail: why.
  cancel,       ///< the sender withdrew the message: token, id; tail: why.
  bye,          ///< the rank leaves; tail: why, or empty.
};

/// How the bytes of a message travel after the CTS.
enum class Method : std::uint8_t { framed = 1, put, tagged };

inline constexpr std::size_t kMaxAddress = WireAddress::kMaxBytes;  ///< bytes.
inline constexpr std::size_t kMaxText = 512;                        ///< bytes of an error message.

/// One record. Numbers that its kind does not use are 0.
struct Record {
  Kind kind{};
  std::uint8_t detail = 0;
  std::uint64_t numbers[3] = {};  ///< in the order in which Kind lists them.
  std::span<const std::byte> tail = {};
};

/// The count of numbers in a record of this kind; 0 for an unknown kind.
std::size_t num_numbers(Kind kind);

/// Bytes of the encoded record: 8, the numbers, the tail rounded up to 8. At most 32 + tail.
std::size_t encoded_bytes(const Record& record);

/// Appends the record. @pre tail.size() < 2^32
void append(std::vector<std::byte>& frame, const Record& record);

/// An error message as a record's tail, truncated to kMaxText bytes. Borrows the text.
inline std::span<const std::byte> tail_of(std::string_view text) {
  return std::as_bytes(std::span(text.substr(0, kMaxText)));
}

/// Parses the records of a frame from an untrusted peer. A record that it returns has a known kind,
/// all its numbers, and a tail within the frame that is no longer than its kind allows.
class FrameReader {
 public:
  /// Borrows the frame, as do the tails of the records.
  explicit FrameReader(std::span<const std::byte> frame) : left_(frame) {}

  bool at_end() const { return left_.empty(); }
  /// @pre !at_end(). Errors: `corrupt`.
  Result<Record> next();

 private:
  std::span<const std::byte> left_;
};

}  // namespace reshard::messages
