// SPDX-License-Identifier: Apache-2.0
#include "reshard/program/compile_batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "reshard/base/hash.h"
#include "reshard/layout/clip.h"
#include "reshard/program/messages.h"
#include "reshard/program/tiles.h"

namespace reshard {
namespace {

using program::Builder;
using program::Chunk;
using Kind = ProgramBuffer::Kind;

constexpr Index kLeastStaging = Index{32} << 10;
/// More messages than any batch needs; fewer than steps can be numbered.
constexpr Index kMaxMessages = Index{1} << 24;
constexpr Index kCopyTileBytes = Index{1} << 20;

class BatchCompiler {
 public:
  BatchCompiler(Rank rank, int world, const TransferBatch& batch, Index staging_bytes,
                int round_bits)
      : me_(rank), world_(world), batch_(batch), out_(rank, 0) {
    options_.world = world;
    options_.staging_bytes = staging_bytes;
    options_.round_bits = round_bits;
    most_ = program::most_staged(options_);
  }

  Result<> check() const;
  Program compile() &&;

 private:
  /// A message is never empty, so an empty tensor needs none.
  Index messages_of(const BatchTransfer& t) const {
    const Index bytes = t.packing.bytes();
    return bytes / most_ + (bytes % most_ != 0);
  }
  BufferId tensor(Kind kind, std::size_t slot, Interval span) {
    return out_.tensor(kind, me_, SlotId(static_cast<SlotId::rep>(slot)), span.end());
  }
  void add_pair(std::span<const std::size_t> pair);
  Chunk chunk(std::size_t transfer, Index number, Index messages);
  void add_copies();

  Rank me_;
  int world_;
  const TransferBatch& batch_;
  CompileOptions options_;
  Index most_ = 0;  ///< bytes of a message.
  Builder out_;
  std::vector<Chunk> chunks_;
};

Result<> BatchCompiler::check() const {
  Index left = kMaxMessages - static_cast<Index>(batch_.copies.size());
  for (const BatchTransfer& t : batch_.transfers) {
    if (left >= 0) left -= messages_of(t);
  }
  for (const StridedCopy& copy : batch_.copies)
    if (left >= 0) left -= copy.bytes() / kCopyTileBytes;
  if (left >= 0) return {};
  return fail(Code::invalid_argument,
              fmt::format("a batch needs more than {} messages and copies of at most {} bytes",
                          kMaxMessages, most_));
}

/// One message of a transfer, without its place in the order.
Chunk BatchCompiler::chunk(std::size_t transfer, Index number, Index messages) {
  const BatchTransfer& t = batch_.transfers[transfer];
  const Index begin = number * most_, end = std::min(begin + most_, t.packing.bytes());
  // Cut transfers need more ids than they have. With the number of messages in its id, no part of a
  // tensor is taken for a smaller tensor with the same id.
  const std::uint64_t id = messages == 1
                               ? t.id
                               : mix64(mix64(mix64(t.id) + static_cast<std::uint64_t>(messages)) +
                                       static_cast<std::uint64_t>(number));
  const BufferId memory =
      tensor(t.is_send ? Kind::source : Kind::target, transfer, source_span(t.packing));
  Chunk out;
  out.message = {t.peer, id, t.is_send, {Builder::kStaging, 0}, end - begin};
  if (t.packing.num_loops == 0) {
    out.message.at = {memory, t.packing.src_offset + begin};
    return out;
  }
  std::vector<StridedCopy> parts;
  clip_destination(t.packing, begin, end, parts);
  for (StridedCopy& part : parts) {
    part.dst_offset -= begin;
    out.pieces.push_back(t.is_send ? ProgramPiece{part, memory, Builder::kStaging, {}}
                                   : ProgramPiece{reversed(part), Builder::kStaging, memory, {}});
  }
  return out;
}

/// The messages to or from one peer: `pair` has its transfers by ascending id. Both ranks give each
/// message the same place in the order of MessageSteps, as it follows from ids and sizes alone.
void BatchCompiler::add_pair(std::span<const std::size_t> pair) {
  Index bytes = 0, before = 0;
  for (const std::size_t i : pair) bytes += batch_.transfers[i].packing.bytes();
  for (const std::size_t i : pair) {
    const BatchTransfer& t = batch_.transfers[i];
    const int shift = t.is_send ? t.peer.value() - me_.value() : me_.value() - t.peer.value();
    const Index messages = messages_of(t);
    for (Index number = 0; number < messages; ++number) {
      Chunk& added = chunks_.emplace_back(chunk(i, number, messages));
      added.shift = (shift + world_) % world_;
      added.progress =
          program::progress_of(before, added.message.bytes, bytes, added.shift, options_);
      before += added.message.bytes;
      out_.count_copies(added.pieces.size());
    }
  }
}

void BatchCompiler::add_copies() {
  std::vector<ProgramPiece> pieces;
  std::vector<program::PieceGroup> groups;
  for (std::size_t i = 0; i < batch_.copies.size(); ++i) {
    const StridedCopy& copy = batch_.copies[i];
    const std::size_t slot = batch_.transfers.size() + i;
    groups.push_back({i, i + 1});
    pieces.push_back({copy,
                      tensor(Kind::source, slot, source_span(copy)),
                      tensor(Kind::target, slot, destination_span(copy)),
                      {}});
  }
  out_.count_copies(pieces.size());
  program::add_tiles(out_, pieces, groups, kCopyTileBytes, {});
}

Program BatchCompiler::compile() && {
  std::vector<std::size_t> order(batch_.transfers.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto pair_of = [&](std::size_t i) {
    return std::pair(batch_.transfers[i].is_send, batch_.transfers[i].peer);
  };
  std::ranges::sort(order, {},
                    [&](std::size_t i) { return std::pair(pair_of(i), batch_.transfers[i].id); });
  for (std::size_t i = 0, end = 0; i < order.size(); i = end) {
    for (end = i; end < order.size() && pair_of(order[end]) == pair_of(order[i]);) ++end;
    add_pair(std::span(order).subspan(i, end - i));
  }
  program::MessageSteps messages(out_, 0, program::exchange_limits(options_));
  const Index staging = messages.add(std::move(chunks_));
  out_.set_round_bits(messages.round_bits());
  add_copies();
  return std::move(out_).finish(staging, 0);
}

}  // namespace

Result<Program> compile_batch(Rank rank, int world, const TransferBatch& batch, Index staging_bytes,
                              int round_bits) {
  if (staging_bytes < kLeastStaging)
    return fail(Code::invalid_argument,
                fmt::format("staging of {} bytes is too small; the least is {}", staging_bytes,
                            kLeastStaging));
  BatchCompiler compiler(rank, world, batch, staging_bytes, round_bits);
  RESHARD_TRY(compiler.check());
  return std::move(compiler).compile();
}

}  // namespace reshard
