// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/tcp/frame.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "reshard/transport/checks.h"

namespace reshard::tcp {
namespace {

// kind, id, a, b, length of the text; little-endian.
constexpr std::size_t kHeadBytes = 1 + 3 * 8 + 4;

void put(std::vector<std::byte>& out, std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out.push_back(static_cast<std::byte>(value >> (8 * i) & 0xff));
}

std::uint64_t take(std::span<const std::byte>& in, std::size_t bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < bytes; ++i)
    value |= static_cast<std::uint64_t>(std::to_integer<unsigned char>(in[i])) << (8 * i);
  in = in.subspan(bytes);
  return value;
}

/// Encodes all fields but the bytes.
void append_head(std::vector<std::byte>& out, const Frame& frame) {
  const std::string_view text = std::string_view(frame.text).substr(0, kMaxTextBytes);
  out.reserve(kHeadBytes + text.size());
  put(out, static_cast<std::uint64_t>(frame.kind), 1);
  for (const std::uint64_t value : {frame.id, frame.a, frame.b}) put(out, value, 8);
  put(out, text.size(), 4);
  for (const char c : text) out.push_back(static_cast<std::byte>(c));
}

}  // namespace

EncodedFrame encode(const Frame& frame, FrameBody body, std::vector<std::byte> buffer) {
  EncodedFrame out;
  out.head = std::move(buffer);
  out.head.clear();
  append_head(out.head, frame);
  if (!body) out.head.insert(out.head.end(), frame.bytes.begin(), frame.bytes.end());
  out.body = std::move(body);
  return out;
}

Result<Frame> parse_frame(std::span<const std::byte> in) {
  Frame frame;
  RESHARD_TRY(parse_frame(in, frame));
  return frame;
}

Result<> parse_frame(std::span<const std::byte> in, Frame& frame) {
  if (in.size() < kHeadBytes || in.size() > kMaxFrameBytes) {
    return fail(Code::corrupt, fmt::format("a control frame of {} bytes: must be {} to {}",
                                           in.size(), kHeadBytes, kMaxFrameBytes));
  }
  const std::uint64_t kind = take(in, 1);
  if (kind < static_cast<std::uint64_t>(Kind::join) ||
      kind > static_cast<std::uint64_t>(Kind::message))
    return fail(Code::corrupt, fmt::format("a control frame of unknown kind {}", kind));
  frame.kind = static_cast<Kind>(kind);
  frame.id = take(in, 8);
  frame.a = take(in, 8);
  frame.b = take(in, 8);
  const std::uint64_t text_bytes = take(in, 4);
  if (text_bytes > kMaxTextBytes || text_bytes > in.size()) {
    return fail(Code::corrupt, fmt::format("a control frame with a text of {} bytes in {} bytes",
                                           text_bytes, in.size()));
  }
  const auto text = in.first(static_cast<std::size_t>(text_bytes));
  frame.text.assign(reinterpret_cast<const char*>(text.data()), text.size());
  const auto rest = in.subspan(text.size());
  frame.bytes.assign(rest.begin(), rest.end());
  return {};
}

void forget(std::vector<std::byte>& bytes, std::size_t most) {
  if (bytes.capacity() > most) bytes = {};
  bytes.clear();
}

void append_part(std::vector<std::byte>& out, std::span<const std::byte> part) {
  put(out, part.size(), 8);
  out.insert(out.end(), part.begin(), part.end());
}

std::vector<std::byte> encode_parts(std::span<const std::vector<std::byte>> parts) {
  std::size_t total = 0;
  for (const auto& part : parts) total += 8 + part.size();
  std::vector<std::byte> out;
  out.reserve(total);
  for (const auto& part : parts) append_part(out, part);
  return out;
}

namespace {

/// Removes part `i` of `count` from the front of `in`.
Result<std::span<const std::byte>> take_part(std::span<const std::byte>& in, std::size_t i,
                                             std::size_t count) {
  const std::uint64_t bytes = in.size() < 8 ? in.size() + 1 : take(in, 8);
  if (bytes > in.size())
    return fail(Code::corrupt, fmt::format("part {} of {} ends too early", i, count));
  const auto part = in.first(static_cast<std::size_t>(bytes));
  in = in.subspan(part.size());
  return part;
}

Result<> check_at_end(std::span<const std::byte> in) {
  if (in.empty()) return {};
  return fail(Code::corrupt, fmt::format("{} bytes after the last part", in.size()));
}

}  // namespace

Result<std::vector<std::vector<std::byte>>> parse_parts(std::span<const std::byte> in,
                                                        std::size_t count) {
  if (in.size() / 8 < count)
    return fail(Code::corrupt, fmt::format("{} parts in {} bytes", count, in.size()));
  std::vector<std::vector<std::byte>> parts;
  parts.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto part = RESHARD_TRY(take_part(in, i, count));
    parts.emplace_back(part.begin(), part.end());
  }
  RESHARD_TRY(check_at_end(in));
  return parts;
}

Result<> parse_equal_parts(std::span<const std::byte> in, std::size_t count, std::size_t part_bytes,
                           std::span<std::byte> out) {
  std::optional<Error> unequal;
  for (std::size_t i = 0; i < count; ++i) {
    const auto part = RESHARD_TRY(take_part(in, i, count));
    if (part.size() != part_bytes) {
      if (!unequal) unequal = unequal_part(i, part.size(), part_bytes);
    } else {
      std::ranges::copy(part, out.begin() + static_cast<std::ptrdiff_t>(i * part_bytes));
    }
  }
  RESHARD_TRY(check_at_end(in));
  if (unequal) return tl::unexpected(*std::move(unequal));
  return {};
}

}  // namespace reshard::tcp
