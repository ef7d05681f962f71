// SPDX-License-Identifier: Apache-2.0
// A frame is a sequence of records: kind, detail, two zero bytes, length of the tail (4 bytes), the
// numbers (8 bytes each), the tail, zeros up to a multiple of 8. Numbers are in the byte order of
// the machine: all ranks of a group have the same.
#include "reshard/transport/messages/frames.h"

#include <fmt/format.h>

#include <algorithm>

namespace reshard::messages {
namespace {

constexpr std::size_t kHeader = 8;

struct Shape {
  std::size_t numbers = 0;
  std::size_t max_tail = 0;
  std::uint8_t max_detail = 0;
};

constexpr std::size_t kAnyTail = std::size_t{1} << 31;

Shape shape(Kind kind) {
  switch (kind) {
    case Kind::payload: return {2, kAnyTail, 0};
    case Kind::rts: return {3, kMaxAddress, 1};
    case Kind::retry: return {1, 0, 0};
    case Kind::cts: return {3, kMaxAddress, static_cast<std::uint8_t>(Method::tagged)};
    case Kind::data: return {1, kAnyTail, 0};
    case Kind::put_done: return {1, 0, 0};
    case Kind::done: return {1, 0, 0};
    case Kind::refuse: return {1, kMaxText, static_cast<std::uint8_t>(Code::aborted)};
    case Kind::cancel: return {2, kMaxText, 0};
    case Kind::bye: return {0, kMaxText, 0};
  }
  return {};
}

bool known(Kind kind) { return kind >= Kind::payload && kind <= Kind::bye; }

std::size_t padded(std::size_t bytes) { return (bytes + 7) / 8 * 8; }

}  // namespace

std::size_t num_numbers(Kind kind) { return shape(kind).numbers; }

std::size_t encoded_bytes(const Record& record) {
  return kHeader + 8 * num_numbers(record.kind) + padded(record.tail.size());
}

void append(std::vector<std::byte>& frame, const Record& record) {
  const std::size_t begin = frame.size();
  const std::size_t numbers = num_numbers(record.kind);
  frame.resize(begin + encoded_bytes(record));
  std::byte* at = frame.data() + begin;
  const auto tail = static_cast<std::uint32_t>(record.tail.size());
  at[0] = static_cast<std::byte>(record.kind);
  at[1] = static_cast<std::byte>(record.detail);
  std::memcpy(at + 4, &tail, sizeof tail);
  std::memcpy(at + kHeader, record.numbers, 8 * numbers);
  if (tail != 0) std::memcpy(at + kHeader + 8 * numbers, record.tail.data(), tail);
}

Result<Record> FrameReader::next() {
  if (left_.size() < kHeader)
    return fail(Code::corrupt,
                fmt::format("a record begins with {} bytes, at least 8 expected", left_.size()));
  Record record;
  record.kind = static_cast<Kind>(left_[0]);
  record.detail = static_cast<std::uint8_t>(left_[1]);
  std::uint32_t tail = 0;
  std::memcpy(&tail, left_.data() + 4, sizeof tail);
  if (!known(record.kind))
    return fail(Code::corrupt,
                fmt::format("a record of unknown kind {}", static_cast<unsigned>(record.kind)));
  const Shape expected = shape(record.kind);
  const std::size_t begin = kHeader + 8 * expected.numbers;
  if (left_[2] != std::byte{0} || left_[3] != std::byte{0} || record.detail > expected.max_detail ||
      tail > expected.max_tail || begin + padded(tail) > left_.size()) {
    return fail(Code::corrupt,
                fmt::format("a record of kind {} with detail {} and a tail of {} bytes in a "
                            "frame that has {} bytes left",
                            static_cast<unsigned>(record.kind), record.detail, tail, left_.size()));
  }
  std::memcpy(record.numbers, left_.data() + kHeader, 8 * expected.numbers);
  record.tail = left_.subspan(begin, tail);
  left_ = left_.subspan(begin + padded(tail));
  return record;
}

}  // namespace reshard::messages
