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

/// The kind of a frame between a rank and the coordinator of a TCP control plane; the comments list
/// the fields in use. Every request of a rank has a unique `id` and is answered once, by `done` or
/// `failed` with the same id, unless the group was aborted.
enum class Kind : std::uint8_t {
  // From a rank.
  join = 1,  ///< id 0, a: rank, b: size, text: excerpt of the agreement, bytes: its digest, then
             ///< the settings, alternating names and values, each followed by a zero byte.
  meet,      ///< id, text: name of the collective call, bytes: the contribution of this rank.
  quiesce,   ///< id.
  leave,     ///< id of the request that the rank no longer waits for.
  abort,     ///< text: reason.
  tally,     ///< a: the sum of what this rank reported; from the coordinator: of the other ranks.
  bye,
  // From the coordinator.
  done,     ///< id, bytes: parts, see encode_parts().
  failed,   ///< id, a: code, text.
  aborted,  ///< text.
  lost,     ///< a: rank, b: 1 if it died, 0 if it closed.
  // Between a ControlServer and its connections, which send nothing else.
  message,  ///< bytes.
};

struct Frame {
  Kind kind = Kind::bye;
  std::uint64_t id = 0, a = 0, b = 0;
  std::string text;
  std::vector<std::byte> bytes;
};

/// The text of a `meet` without contributions: its answer has no parts.
inline constexpr std::string_view kBarrier = "barrier";

/// Size of the longest frame, and of the longest result of an all_gather. Bytes.
inline constexpr std::size_t kMaxFrameBytes = (std::size_t{64} << 20) + 4096;
/// Longest text of a frame; longer ones are truncated when encoded.
inline constexpr std::size_t kMaxTextBytes = 2048;
/// Longest `bytes` of a join frame: bounds the memory for connections that are no rank yet.
inline constexpr std::size_t kMaxJoinBytes = 8192;

/// The `bytes` of a frame, shared by the ranks that it goes to.
using FrameBody = std::shared_ptr<const std::vector<std::byte>>;

/// An encoded frame.
struct EncodedFrame {
  std::vector<std::byte> head;
  FrameBody body = nullptr;  ///< may be null.
  std::size_t size() const { return head.size() + (body ? body->size() : 0); }
};

/// Encodes a frame, with `body` in place of frame.bytes unless it is null. Reuses the memory of
/// `buffer`, whose content is lost.
EncodedFrame encode(const Frame& frame, FrameBody body = nullptr,
                    std::vector<std::byte> buffer = {});
/// Errors: `corrupt`.
Result<Frame> parse_frame(std::span<const std::byte> bytes);
/// Parses into an existing frame, whose memory it reuses.
Result<> parse_frame(std::span<const std::byte> bytes, Frame& into);

/// Clears a buffer for reuse, and frees its memory if it has more than `most` bytes.
void forget(std::vector<std::byte>& bytes, std::size_t most);

/// Concatenates the contributions of all ranks: for each its length (8 bytes) and its bytes.
std::vector<std::byte> encode_parts(std::span<const std::vector<std::byte>> parts);
void append_part(std::vector<std::byte>& out, std::span<const std::byte> part);
/// Errors: `corrupt` unless `bytes` has exactly `count` parts.
Result<std::vector<std::vector<std::byte>>> parse_parts(std::span<const std::byte> bytes,
                                                        std::size_t count);
/// Parses parts of `part_bytes` bytes each into `out`, in order. Errors: as above; unequal_part().
/// @pre out.size() is count * part_bytes
Result<> parse_equal_parts(std::span<const std::byte> bytes, std::size_t count,
                           std::size_t part_bytes, std::span<std::byte> out);

}  // namespace reshard::tcp
