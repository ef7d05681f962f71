// SPDX-License-Identifier: Apache-2.0
#include "reshard/program/messages.h"

#include <algorithm>
#include <tuple>

namespace reshard::program {
namespace {

constexpr std::size_t kMostChunks = 16;

/// Each chunk begins on its own cache line.
Index staged_bytes(const Chunk& chunk) {
  return chunk.is_staged() ? (chunk.message.bytes + 63) / 64 * 64 : 0;
}

}  // namespace

MessageSteps::MessageSteps(Builder& builder, Index first, Index most)
    : builder_(builder), first_(first), most_(most) {}

std::vector<MessageSteps::Group> MessageSteps::group(const std::vector<Chunk>& chunks) const {
  std::vector<Group> groups;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const Index staged = staged_bytes(chunks[i]), bytes = chunks[i].message.bytes;
    const bool joins = !groups.empty() && i - groups.back().first < kMostChunks &&
                       groups.back().bytes + bytes <= most_ &&
                       groups.back().staged + staged <= most_;
    if (!joins) groups.push_back({i, i, 0, 0});
    Group& last = groups.back();
    last.end = i + 1;
    last.bytes += bytes;
    last.staged += staged;
  }
  return groups;
}

Index MessageSteps::add(std::vector<Chunk> chunks) {
  std::ranges::sort(chunks, {}, &Chunk::key);
  const std::vector<Group> groups = group(chunks);
  Index all = 0, largest = 0;
  for (const Group& g : groups) {
    all += g.staged;
    largest = std::max(largest, g.staged);
  }
  size_ = std::min(all, kRingExchanges * largest);
  for (const Group& g : groups) append(chunks, g);
  return first_ + size_;
}

/// Gives the group the staging after its predecessor's, or from the beginning if it does not fit
/// there. Appends the last users of that staging to `waits`. The ring has room for any two
/// consecutive groups.
Index MessageSteps::place(const Group& group, std::vector<StepId>& waits) {
  if (at_ + group.staged > size_) at_ = 0;
  const Index begin = at_;
  at_ += group.staged;
  if (group.staged == 0) return begin;
  std::vector<Region> left;
  for (const Region& r : regions_) {
    if (r.begin < at_ && begin < r.end) waits.push_back(r.until);
    // What is not used again yet stays in use.
    if (const Index end = std::min(r.end, begin); r.begin < end)
      left.push_back({r.begin, end, r.until});
    if (const Index first = std::max(r.begin, at_); first < r.end)
      left.push_back({first, r.end, r.until});
  }
  regions_ = std::move(left);
  return begin;
}

void MessageSteps::append(std::vector<Chunk>& chunks, const Group& group) {
  std::vector<StepId> waits;
  const Index begin = place(group, waits);
  Index at = first_ + begin;
  for (std::size_t i = group.first; i < group.end; ++i) {
    Chunk& chunk = chunks[i];
    if (!chunk.is_staged()) continue;
    chunk.message.at.offset = at;
    for (ProgramPiece& piece : chunk.pieces)
      (chunk.message.is_send ? piece.copy.dst_offset : piece.copy.src_offset) += at;
    at += staged_bytes(chunk);
  }
  if (const auto packed = pack(chunks, group, waits)) waits.push_back(*packed);
  if (exchanges_.size() >= kWindow) waits.push_back(exchanges_[exchanges_.size() - kWindow]);
  const StepId sent = exchange(chunks, group, std::move(waits));
  const StepId until = unpack(chunks, group, sent);
  if (group.staged > 0) regions_.push_back({begin, begin + group.staged, until});
}

std::optional<StepId> MessageSteps::pack(const std::vector<Chunk>& chunks, const Group& group,
                                         const std::vector<StepId>& waits) {
  bool any = false;
  for (std::size_t i = group.first; i < group.end; ++i) {
    if (!chunks[i].message.is_send) continue;
    for (const ProgramPiece& piece : chunks[i].pieces) {
      builder_.copy(piece, false);
      any = true;
    }
  }
  if (!any) return std::nullopt;
  return builder_.tile(0, 0, waits);
}

StepId MessageSteps::exchange(const std::vector<Chunk>& chunks, const Group& group,
                              std::vector<StepId> waits) {
  std::vector<ProgramMessage> messages;
  Index bytes = 0, delivered = 0;
  for (std::size_t i = group.first; i < group.end; ++i) {
    const ProgramMessage& message = messages.emplace_back(chunks[i].message);
    const bool in_place = !message.is_send && !chunks[i].is_staged();
    if (message.is_send || in_place) bytes += message.bytes;
    if (in_place) delivered += message.bytes;
  }
  exchanges_.push_back(builder_.exchange(messages, bytes, delivered, std::move(waits)));
  return exchanges_.back();
}

/// Returns the step after which the group's staging is free.
StepId MessageSteps::unpack(const std::vector<Chunk>& chunks, const Group& group, StepId exchange) {
  Index bytes = 0;
  for (std::size_t i = group.first; i < group.end; ++i) {
    if (chunks[i].message.is_send) continue;
    for (const ProgramPiece& piece : chunks[i].pieces) {
      builder_.copy(piece, true);
      bytes += piece.copy.bytes();
    }
  }
  return bytes == 0 ? exchange : builder_.tile(bytes, bytes, {exchange});
}

}  // namespace reshard::program
