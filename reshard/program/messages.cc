// SPDX-License-Identifier: Apache-2.0
#include "reshard/program/messages.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "reshard/base/int128.h"

namespace reshard::program {
namespace {

constexpr std::uint64_t kParts = std::uint64_t{1} << 16;  ///< of a position, but for its progress.
constexpr int kMaxRoundBits = 63;

/// Each chunk begins on its own cache line.
Index staged_bytes(const Chunk& chunk) {
  return chunk.is_staged() ? whole_lines(chunk.message.bytes) : 0;
}

std::uint64_t id_on_all_hops(const Chunk& chunk) { return chunk.message.id & ~kForwarded; }

/// The position of a chunk in the order of the group.
std::uint64_t position_of(const Chunk& c) {
  const auto part = [](std::uint64_t n) { return std::min(n, kParts - 1); };
  return (c.progress * kParts + part(static_cast<std::uint64_t>(c.shift))) * kParts +
         part(c.number);
}

/// Numbers the chunks of each pair that have the same progress, in both directions.
void number(std::vector<Chunk>& sorted) {
  std::uint32_t next[2] = {};
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    Chunk& c = sorted[i];
    if (i > 0 &&
        std::pair(c.progress, c.shift) != std::pair(sorted[i - 1].progress, sorted[i - 1].shift))
      next[0] = next[1] = 0;
    c.number = next[c.message.is_send ? 1 : 0]++;
  }
}

}  // namespace

std::uint64_t progress_of(Index before, Index chunk, Index bytes, Index shift,
                          const CompileOptions& options) {
  const auto all = static_cast<UInt128>(std::max<Index>(bytes, 1));
  UInt128 at = static_cast<UInt128>(before) << 32;
  if (options.round_bits >= 0)
    at += (static_cast<UInt128>(chunk) << 32) * static_cast<UInt128>(shift) /
          static_cast<UInt128>(options.world);
  return static_cast<std::uint64_t>(std::min(at / all, (UInt128{1} << 32) - 1));
}

std::uint64_t progress_of_chain(Index before, Index bytes, Index lag, const RelayHop& relay) {
  const UInt128 late = static_cast<UInt128>(lag) * static_cast<UInt128>(relay.hop),
                all = static_cast<UInt128>(bytes) +
                      static_cast<UInt128>(lag) * static_cast<UInt128>(relay.hops);
  return static_cast<std::uint64_t>(((static_cast<UInt128>(before) + late) << 32) / all);
}

MessageSteps::MessageSteps(Builder& builder, Index first, const ExchangeLimits& limits,
                           std::vector<StepId> known)
    : builder_(builder),
      limits_(limits),
      round_bits_(std::min(limits.round_bits, kMaxRoundBits)),
      first_(first),
      known_(std::move(known)) {}

/// True if an exchange can be as large as two groups together.
bool MessageSteps::fit(const Group& a, const Group& b) const {
  return a.end - a.first + b.end - b.first <= limits_.chunks && !forwards(a, b) &&
         a.bytes + b.bytes <= limits_.bytes && a.staged + b.staged <= limits_.staged;
}

/// True if a chunk of `b` forwards one of `a`.
bool MessageSteps::forwards(const Group& a, const Group& b) const {
  for (std::size_t i = b.first; i < b.end && !forwarded_.empty(); ++i)
    if (forwarded_[i] > a.first) return true;
  return false;
}

void MessageSteps::find_forwarded(const std::vector<Chunk>& chunks) {
  std::map<std::uint64_t, std::size_t> received;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    if (chunks[i].relay == Chunk::Relay::received) received[id_on_all_hops(chunks[i])] = i + 1;
    if (chunks[i].relay != Chunk::Relay::forwarded) continue;
    forwarded_.resize(chunks.size());
    forwarded_[i] = received.at(id_on_all_hops(chunks[i]));
  }
}

/// Cuts sorted chunks into rounds, as large as fits.
std::vector<MessageSteps::Group> MessageSteps::rounds(const std::vector<Chunk>& chunks) {
  const std::vector<Group> each = alone(chunks);
  std::vector<std::uint64_t> positions;
  for (const Chunk& c : chunks) positions.push_back(position_of(c));
  for (;; --round_bits_) {
    std::vector<Group> groups;
    bool whole = true;
    for (std::size_t i = 0; i < each.size() && (whole || round_bits_ == 0); ++i) {
      const Group& next = each[i];
      if (i == 0 || positions[i] >> round_bits_ != positions[i - 1] >> round_bits_) {
        groups.push_back(next);
        continue;
      }
      whole &= fit(groups.back(), next);
      groups.back() = {groups.back().first, next.end, groups.back().bytes + next.bytes,
                       groups.back().staged + next.staged};
    }
    if (whole || round_bits_ == 0) return groups;
  }
}

/// Each chunk as a group. The first chunk of a receive buffer takes the buffer with it.
std::vector<MessageSteps::Group> MessageSteps::alone(const std::vector<Chunk>& chunks) const {
  std::vector<Group> groups;
  std::int64_t last = -1;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    Index staged = staged_bytes(chunks[i]);
    if (chunks[i].receive_buffer >= 0 && chunks[i].receive_buffer != last) {
      last = chunks[i].receive_buffer;
      staged += whole_lines(buffers_[static_cast<std::size_t>(last)].bytes);
    }
    groups.push_back({i, i + 1, chunks[i].message.bytes, staged});
  }
  return groups;
}

/// Chunks that are made of the same rows stay together if they can.
std::vector<MessageSteps::Group> MessageSteps::group(const std::vector<Chunk>& chunks) const {
  const std::vector<Group> each = alone(chunks);
  std::vector<Group> groups;
  const auto append = [&](const Group& next) {
    if (groups.empty() || !fit(groups.back(), next)) {
      groups.push_back(next);
    } else {
      groups.back() = {groups.back().first, next.end, groups.back().bytes + next.bytes,
                       groups.back().staged + next.staged};
    }
  };
  for (std::size_t i = 0, end = 0; i < chunks.size(); i = end) {
    Group rows = each[i];
    bool whole = true;
    for (end = i + 1; chunks[i].pack && end < chunks.size() && chunks[end].pack &&
                      chunks[end].progress == chunks[i].progress;
         ++end) {
      const Group& next = each[end];
      whole &= fit(rows, next);
      rows = {i, end + 1, rows.bytes + next.bytes, rows.staged + next.staged};
    }
    if (whole) append(rows);
    for (std::size_t c = i; !whole && c < end; ++c) append(each[c]);
  }
  return groups;
}

Index MessageSteps::add(std::vector<Chunk> chunks, std::vector<ReceiveBuffer> buffers) {
  buffers_ = std::move(buffers);
  std::ranges::sort(chunks, {}, &Chunk::key);
  if (round_bits_ >= 0) {
    number(chunks);
    std::ranges::sort(chunks, {}, &Chunk::key);
  }
  find_forwarded(chunks);
  const std::vector<Group> groups = round_bits_ < 0 ? group(chunks) : rounds(chunks);
  Index all = 0, largest = 0;
  for (const Group& g : groups) {
    all += g.staged;
    largest = std::max(largest, g.staged);
  }
  size_ = std::min(all, limits_.ring * largest);
  for (const Group& g : groups) append(chunks, g);
  return first_ + size_;
}

/// Takes staging after what was taken last, or from the beginning if it does not fit there. Appends
/// the last users of that staging to `waits`.
Index MessageSteps::place(Index bytes, std::vector<StepId>& waits) {
  if (at_ + bytes > size_) at_ = 0;
  const Index begin = at_;
  if (bytes == 0) return begin;
  at_ += bytes;
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

/// Sets the places of the chunks' bytes: the staged ones at `at`, one after another.
void MessageSteps::place_chunks(std::vector<Chunk>& chunks, const Group& group, Index at,
                                std::vector<StepId>& waits) {
  for (std::size_t i = group.first; i < group.end; ++i) {
    Chunk& chunk = chunks[i];
    if (chunk.receive_buffer >= 0) {
      const auto [open, added] = open_.try_emplace(chunk.receive_buffer);
      const ReceiveBuffer& buffer = buffers_[static_cast<std::size_t>(chunk.receive_buffer)];
      if (added) {
        open->second.at = first_ + place(whole_lines(buffer.bytes), waits);
        if (buffer.clears) builder_.clear({{Builder::kStaging, open->second.at}, buffer.bytes});
      }
      if (chunk.in_receive_buffer()) chunk.message.at.offset += open->second.at;
      for (ProgramPiece& piece : chunk.pieces) piece.copy.dst_offset += open->second.at;
    }
    if (!chunk.is_staged()) continue;
    chunk.message.at.offset = at;
    for (ProgramPiece& piece : chunk.pieces)
      (chunk.message.is_send ? piece.copy.dst_offset : piece.copy.src_offset) += at;
    at += staged_bytes(chunk);
  }
}

void MessageSteps::append(std::vector<Chunk>& chunks, const Group& group) {
  std::vector<StepId> waits;
  Index staged = 0;
  for (std::size_t i = group.first; i < group.end; ++i) staged += staged_bytes(chunks[i]);
  const Index begin = place(staged, waits);
  for (std::size_t i = group.first; i < group.end; ++i)
    if (chunks[i].relay == Chunk::Relay::forwarded)
      waits.push_back(arrived_.at(id_on_all_hops(chunks[i])));
  const std::size_t before = builder_.num_ops();
  place_chunks(chunks, group, first_ + begin, waits);
  if (const auto packed = pack(chunks, group, before, waits)) waits.push_back(*packed);
  if (exchanges_.size() >= kWindow) waits.push_back(exchanges_[exchanges_.size() - kWindow]);
  const StepId sent = exchange(chunks, group, std::move(waits));
  const StepId until = unpack(chunks, group, sent);
  if (staged > 0) regions_.push_back({begin, begin + staged, until});
  for (std::size_t i = group.first; i < group.end; ++i)
    if (chunks[i].relay == Chunk::Relay::received) arrived_[id_on_all_hops(chunks[i])] = until;
  arrive(chunks, group, until);
}

/// Appends the tiles of the receive buffers that are complete.
void MessageSteps::arrive(const std::vector<Chunk>& chunks, const Group& group, StepId unpacked) {
  for (std::size_t i = group.first; i < group.end; ++i) {
    const std::int64_t id = chunks[i].receive_buffer;
    if (id < 0) continue;
    const ReceiveBuffer& buffer = buffers_[static_cast<std::size_t>(id)];
    Open& open = open_.at(id);
    if (open.waits.empty() || open.waits.back() != unpacked) open.waits.push_back(unpacked);
    if (++open.arrived < buffer.chunks) continue;
    const StepId until = buffer.convert(open.at, std::move(open.waits));
    const Index begin = open.at - first_;
    regions_.push_back({begin, begin + whole_lines(buffer.bytes), until});
    open_.erase(id);
  }
}

/// Ends the tile that began at op `before`, after packing what the group sends.
std::optional<StepId> MessageSteps::pack(const std::vector<Chunk>& chunks, const Group& group,
                                         std::size_t before, const std::vector<StepId>& waits) {
  for (std::size_t i = group.first; i < group.end; ++i) {
    if (!chunks[i].message.is_send) continue;
    for (const ProgramPiece& piece : chunks[i].pieces) builder_.copy(piece, false);
    if (chunks[i].pack) chunks[i].pack(chunks[i].message.at.offset);
  }
  if (before_tile_) before_tile_();
  if (builder_.num_ops() == before) return std::nullopt;
  std::vector<StepId> all = waits;
  all.insert(all.end(), known_.begin(), known_.end());
  return builder_.tile(0, 0, std::move(all));
}

StepId MessageSteps::exchange(const std::vector<Chunk>& chunks, const Group& group,
                              std::vector<StepId> waits) {
  std::vector<ProgramMessage> messages;
  Index bytes = 0, delivered = 0;
  for (std::size_t i = group.first; i < group.end; ++i) {
    const ProgramMessage& message = messages.emplace_back(chunks[i].message);
    const bool in_place = !message.is_send && message.at.buffer != Builder::kStaging;
    if (message.is_send || in_place) bytes += message.bytes;
    if (in_place) delivered += message.bytes;
  }
  exchanges_.push_back(builder_.exchange(messages, bytes, delivered, std::move(waits)));
  return exchanges_.back();
}

/// Returns the step after which the group's messages are where they belong.
StepId MessageSteps::unpack(const std::vector<Chunk>& chunks, const Group& group, StepId exchange) {
  const std::size_t before = builder_.num_ops();
  Index bytes = 0;
  for (std::size_t i = group.first; i < group.end; ++i) {
    if (chunks[i].message.is_send) continue;
    for (const ProgramPiece& piece : chunks[i].pieces) {
      const bool converted = chunks[i].receive_buffer >= 0;
      builder_.copy(piece, !converted);
      bytes += converted ? 0 : piece.copy.bytes();
    }
  }
  if (builder_.num_ops() == before) return exchange;
  return builder_.tile(bytes, bytes, {exchange});
}

}  // namespace reshard::program
