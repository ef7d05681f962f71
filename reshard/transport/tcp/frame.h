// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/result.h"

namespace reshard::tcp {

/// What the ranks and the hub of a TCP control plane tell each other. The comment gives the fields
/// that each uses; every request of a rank has an `id` of its own, and every request is answered
/// once, by `done` or `failed` with the same id, unless the group was aborted.
enum class Kind : std::uint8_t {
  // From a rank.
  join = 1,  ///< id 0, a: rank, b: size, text: excerpt of the agreement, bytes: its digest and then
             ///< the settings, names and values by turns, each with a zero byte behind it.
  meet,      ///< id, text: name of the call, bytes: what this rank gives.
  quiesce,   ///< id.
  leave,     ///< id: the rank waits no longer for it.
  abort,     ///< text: reason.
  tally,     ///< a: all that this rank reported. From the hub: all that the others reported.
  bye,
  // From the hub.
  done,     ///< id, bytes: parts (see encode_parts).
  failed,   ///< id, a: code, text.
  aborted,  ///< text.
  lost,     ///< a: rank, b: 1 when it died and 0 when it closed.
};

struct Frame {
  Kind kind = Kind::bye;
  std::uint64_t id = 0, a = 0, b = 0;
  std::string text;
  std::vector<std::byte> bytes;
};

/// The text of a `meet` in which nobody gives anything: its answer has no parts.
inline constexpr std::string_view kBarrier = "barrier";

/// Longest frame, and longest answer of an all_gather over all ranks together.
inline constexpr std::size_t kMaxFrameBytes = (std::size_t{64} << 20) + 4096;
/// Longest text of a frame; longer ones are cut when encoded.
inline constexpr std::size_t kMaxTextBytes = 2048;
/// Longest `bytes` of a join frame, so that little is kept of who is not a member yet.
inline constexpr std::size_t kMaxJoinBytes = 8192;

/// The `bytes` of frames to many ranks, shared by them.
using FrameBody = std::shared_ptr<const std::vector<std::byte>>;

/// A frame as bytes.
struct EncodedFrame {
  std::vector<std::byte> head;
  FrameBody body = nullptr;  ///< may be null.
  std::size_t size() const { return head.size() + (body ? body->size() : 0); }
};

/// With `body` in place of frame.bytes, unless it is null; in the memory of `room`, whose content
/// goes.
EncodedFrame encode(const Frame& frame, FrameBody body = nullptr, std::vector<std::byte> room = {});
/// Errors: `corrupt`.
Result<Frame> parse_frame(std::span<const std::byte> bytes);
/// The same into a frame, in the memory that it has.
Result<> parse_frame(std::span<const std::byte> bytes, Frame& into);

/// Empties what is used again, and gives memory back where it is more than `most` bytes.
void forget(std::vector<std::byte>& bytes, std::size_t most);

/// What each rank gave, in one piece: for each its length, 8 bytes, and its bytes.
std::vector<std::byte> encode_parts(std::span<const std::vector<std::byte>> parts);
void append_part(std::vector<std::byte>& out, std::span<const std::byte> part);
/// Errors: `corrupt` unless it is exactly `count` parts.
Result<std::vector<std::vector<std::byte>>> parse_parts(std::span<const std::byte> bytes,
                                                        std::size_t count);
/// Parts of `part_bytes` bytes each into `out`, one after another. Errors: `corrupt`, as above;
/// those of unequal_part(). @pre out.size() is count * part_bytes
Result<> parse_equal_parts(std::span<const std::byte> bytes, std::size_t count,
                           std::size_t part_bytes, std::span<std::byte> out);

}  // namespace reshard::tcp
