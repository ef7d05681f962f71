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
  join = 1,  ///< id 0, a: rank, b: size, text: excerpt and bytes: digest of the agreement.
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

/// A frame as bytes. `bytes` may be given apart, shared by the frames to many ranks.
struct EncodedFrame {
  std::vector<std::byte> head;
  std::shared_ptr<const std::vector<std::byte>> body;  ///< may be null.
  std::size_t size() const { return head.size() + (body ? body->size() : 0); }
};

/// In the memory of `room`, whose content goes.
EncodedFrame encode(const Frame& frame, std::vector<std::byte> room = {});
/// With `body` in place of frame.bytes.
EncodedFrame encode(const Frame& frame, std::shared_ptr<const std::vector<std::byte>> body);
/// Errors: `corrupt`.
Result<Frame> parse_frame(std::span<const std::byte> bytes);

/// What each rank gave, in one piece: for each its length, 8 bytes, and its bytes.
std::vector<std::byte> encode_parts(std::span<const std::vector<std::byte>> parts);
/// Errors: `corrupt` unless it is exactly `count` parts.
Result<std::vector<std::vector<std::byte>>> parse_parts(std::span<const std::byte> bytes,
                                                        std::size_t count);

}  // namespace reshard::tcp
