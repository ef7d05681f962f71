// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/transport/messages/wire_address.h"

namespace reshard::engine {

/// What one record of a frame says. `token` is the sender's name of its message, `room` the
/// receiver's; each side gives back the other's.
enum class Kind : std::uint8_t {
  payload = 1,  ///< a message with its bytes: token, id; tail: the bytes.
  rts,          ///< a message without: token, id, bytes; tail: where a pull finds it, or empty.
  again,        ///< the pull did not work, request it without a place: token.
  cts,          ///< the receiver is ready: token, room, tag; `detail` a Way; tail: where to put it.
  data,         ///< the granted bytes, in the frame: room; tail: the bytes.
  placed,       ///< the granted bytes are in their place: room.
  done,         ///< the receiver has all bytes: token.
  refuse,       ///< the receiver will not take it: token; `detail` a Code; tail: why.
  cancel,       ///< the sender gave it up: token, id; tail: why.
  bye,          ///< the rank leaves; tail: why, or empty.
};

/// How granted bytes travel.
enum class Way : std::uint8_t { framed = 1, placed, tagged };

inline constexpr std::size_t kMaxPlace = WireAddress::kMost;  ///< bytes that describe memory.
inline constexpr std::size_t kMaxText = 512;                  ///< bytes of an error's text.

/// One record. Numbers that its kind has not are 0.
struct Record {
  Kind kind{};
  std::uint8_t detail = 0;
  std::uint64_t numbers[3] = {};  ///< in the order in which Kind lists them.
  std::span<const std::byte> tail = {};
};

/// How many numbers a record of this kind has; 0 also for what is no kind.
std::size_t num_numbers(Kind kind);

/// Bytes of the record in a frame: 8, the numbers, the tail rounded up to 8. At most 32 + the tail.
std::size_t encoded_bytes(const Record& record);

/// Appends the record. @pre tail.size() < 2^32
void append(std::vector<std::byte>& frame, const Record& record);

/// An error's text as a record's tail, cut where it is too long. Borrowed.
inline std::span<const std::byte> tail_of(std::string_view text) {
  return std::as_bytes(std::span(text.substr(0, kMaxText)));
}

/// Takes the records of a frame apart. Trusts nothing: what it returns has a known kind, all its
/// numbers, and a tail that lies in the frame and is not longer than the kind allows.
class FrameReader {
 public:
  /// Borrowed, as are the tails of the records.
  explicit FrameReader(std::span<const std::byte> frame) : left_(frame) {}

  bool at_end() const { return left_.empty(); }
  /// @pre !at_end(). Errors: `corrupt`.
  Result<Record> next();

 private:
  std::span<const std::byte> left_;
};

}  // namespace reshard::engine
