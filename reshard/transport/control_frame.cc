// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/control_frame.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

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

/// All but the bytes.
void append_head(std::vector<std::byte>& out, const Frame& frame) {
  const std::string_view text = std::string_view(frame.text).substr(0, kMaxTextBytes);
  out.reserve(kHeadBytes + text.size());
  put(out, static_cast<std::uint64_t>(frame.kind), 1);
  for (const std::uint64_t value : {frame.id, frame.a, frame.b}) put(out, value, 8);
  put(out, text.size(), 4);
  for (const char c : text) out.push_back(static_cast<std::byte>(c));
}

}  // namespace

EncodedFrame encode(const Frame& frame, std::vector<std::byte> room) {
  EncodedFrame out;
  out.head = std::move(room);
  out.head.clear();
  append_head(out.head, frame);
  out.head.insert(out.head.end(), frame.bytes.begin(), frame.bytes.end());
  return out;
}

EncodedFrame encode(const Frame& frame, std::shared_ptr<const std::vector<std::byte>> body) {
  EncodedFrame out;
  append_head(out.head, frame);
  out.body = std::move(body);
  return out;
}

Result<Frame> parse_frame(std::span<const std::byte> in) {
  if (in.size() < kHeadBytes || in.size() > kMaxFrameBytes) {
    return fail(Code::corrupt, fmt::format("a control frame of {} bytes: {} to {} are possible",
                                           in.size(), kHeadBytes, kMaxFrameBytes));
  }
  Frame frame;
  const std::uint64_t kind = take(in, 1);
  if (kind < static_cast<std::uint64_t>(Kind::join) ||
      kind > static_cast<std::uint64_t>(Kind::lost))
    return fail(Code::corrupt, fmt::format("a control frame of the unknown kind {}", kind));
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
  return frame;
}

std::vector<std::byte> encode_parts(std::span<const std::vector<std::byte>> parts) {
  std::size_t total = 0;
  for (const auto& part : parts) total += 8 + part.size();
  std::vector<std::byte> out;
  out.reserve(total);
  for (const auto& part : parts) {
    put(out, part.size(), 8);
    out.insert(out.end(), part.begin(), part.end());
  }
  return out;
}

Result<std::vector<std::vector<std::byte>>> parse_parts(std::span<const std::byte> in,
                                                        std::size_t count) {
  if (in.size() / 8 < count)
    return fail(Code::corrupt, fmt::format("{} parts in {} bytes", count, in.size()));
  std::vector<std::vector<std::byte>> parts;
  parts.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t bytes = in.size() < 8 ? in.size() + 1 : take(in, 8);
    if (bytes > in.size())
      return fail(Code::corrupt, fmt::format("part {} of {} ends too early", i, count));
    const auto part = in.first(static_cast<std::size_t>(bytes));
    parts.emplace_back(part.begin(), part.end());
    in = in.subspan(part.size());
  }
  if (!in.empty())
    return fail(Code::corrupt, fmt::format("{} bytes behind the last part", in.size()));
  return parts;
}

}  // namespace reshard::tcp
