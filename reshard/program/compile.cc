// SPDX-License-Identifier: Apache-2.0
#include "reshard/program/compile.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/base/check.h"
#include "reshard/layout/clip.h"
#include "reshard/plan/moves.h"
#include "reshard/program/converted/compile_converted.h"
#include "reshard/program/messages.h"
#include "reshard/program/pair_chunks.h"
#include "reshard/program/tiles.h"

namespace reshard {
namespace {

/// Reads of this size stay in the cache between the read and the copy.
constexpr Index kMaxGets = Index{512} << 10;

/// The path of a transfer. A relayed one is in messages: it must be complete before it is sent on.
PairPath path_of(const Transfer& t, bool is_send, const CompileOptions& options) {
  if (t.relay.relayed()) return PairPath::message;
  return is_send ? options.path_to(t.dst) : options.path_from(t.src);
}

Index staging_of_gets(const CompileOptions& options) {
  return options.gets ? std::min(kMaxGets, options.staging_bytes / 2) : 0;
}

}  // namespace

namespace program {

Index most_of_chain(Index bytes, std::int32_t hops, const CompileOptions& options) {
  // A chain is filled once each hop has passed on a chunk.
  constexpr Index kChunksOfHop = 32, kLeast = Index{256} << 10;
  const Index wanted = std::max(kLeast, bytes / (kChunksOfHop * hops) / 64 * 64);
  return std::min(wanted, most_staged(options));
}

/// Bits of a message id that count the chunks of a chain.
constexpr int kChunkBits = 24;

Result<> check_chain(Index bytes, Index pieces, Index most) {
  constexpr Index kMaxChunks = Index{1} << kChunkBits;
  // Pieces with chunks of their own may leave one before them that is not full.
  if (bytes / most + 2 * pieces + 1 <= kMaxChunks) return {};
  return fail(Code::unsupported,
              fmt::format("a chain of relays of {} bytes has more than {} messages of {} bytes; "
                          "give ranks more staging, or leave routes direct",
                          bytes, kMaxChunks, most));
}

std::uint64_t id_in_chain(const RelayHop& relay, std::size_t chunk) {
  RESHARD_CHECK(chunk >> kChunkBits == 0);
  const std::uint64_t id = (static_cast<std::uint64_t>(relay.chain) + 1) << kChunkBits | chunk;
  RESHARD_CHECK(id < kForwarded);
  return relay.hop > 0 ? id | kForwarded : id;
}

/// In exchanges.
constexpr Index kRing = 8, kRingOfRounds = 4;

Index most_staged(const CompileOptions& options) {
  /// A chunk of this size stays in the caches between packing and sending.
  constexpr Index kMax = Index{1} << 20;
  const Index left = options.staging_bytes - staging_of_gets(options);
  return std::min(kMax, left / kRing / 64 * 64);
}

ExchangeLimits exchange_limits(const CompileOptions& options) {
  const Index most = most_staged(options);
  if (options.round_bits < 0) return {most, most, 16, kRing, -1};
  // A round costs its transport a start, whatever its size. One that is a single position has a
  // chunk that is sent and one that is received, which fit.
  constexpr std::size_t kMaxChunks = 1024;
  const Index left = options.staging_bytes - staging_of_gets(options);
  return {left / kRingOfRounds / 64 * 64, options.round_bytes, kMaxChunks, kRingOfRounds,
          options.round_bits};
}

}  // namespace program

using program::Builder;
using program::Chunk;
using program::ChunkPart;
using program::PieceGroup;

namespace {

/// Bytes of a tile that copies; if messages wait for the same thread, smaller.
constexpr Index kTileBytes = Index{4} << 20, kTileBytesBesideMessages = Index{1} << 20;
using Kind = ProgramBuffer::Kind;

class Compiler {
 public:
  Compiler(const Planner& planner, Rank rank) : planner_(planner), out_(rank, planner.digest()) {}

  Result<Program> rank(const RankPlan& part, const CompileOptions& options);
  Result<Program> in_process(std::span<const Rank> destinations);

 private:
  BufferId source(Rank r, SlotId slot, bool mapped = true) {
    return out_.tensor(Kind::source, r, slot, bytes_of_local(planner_.source(), r, slot), mapped);
  }
  BufferId target(Rank r, SlotId slot) {
    return out_.tensor(Kind::target, r, slot, bytes_of_local(planner_.target(), r, slot));
  }
  ProgramPiece piece_of(const Move& m, bool mapped = true) {
    return {m.copy, source(m.src, m.src_slot, mapped), target(m.dst, m.dst_slot), m.conversion};
  }

  void add_reads(std::vector<Move> moves, Index tile_bytes, const std::vector<StepId>& waits);
  Result<Index> add_gets(const RankPlan& part, const CompileOptions& options,
                         const std::vector<StepId>& waits);
  Result<> add_chunks(std::span<const Transfer> pair, bool is_send, const CompileOptions& options);
  Result<> add_chain(std::span<const Transfer> chain, bool is_send, const CompileOptions& options);
  Result<> add_all_chunks(const RankPlan& part, const CompileOptions& options);
  /// One side of a pair's messages.
  struct Side {
    Rank peer;
    bool is_send = false, from_target = false;
    bool stages_all = false;
    Index shift = 0;  ///< Chunk::shift.
  };
  Side side_of(std::span<const Transfer> pair, bool is_send, const CompileOptions& options) const;
  BufferId memory(const Side& side, SlotId slot) {
    return side.is_send && !side.from_target ? source(me_, slot) : target(me_, slot);
  }
  /// `packing(i)`: of piece i, on this side.
  template <class F>
  Chunk chunk_of(F&& packing, std::span<const ChunkPart> parts, const Side& side);
  void add_part(const Packing& packing, const ChunkPart& part, const Side& side, Chunk& chunk);
  Result<> add_duplicates(std::span<const Transfer> messages);

  const Planner& planner_;
  Builder out_;
  Rank me_;
  std::vector<Chunk> chunks_;
};

/// Copies from memory that is mapped here.
void Compiler::add_reads(std::vector<Move> moves, Index tile_bytes,
                         const std::vector<StepId>& waits) {
  const std::vector<PieceGroup> groups = program::group_moves(moves);
  std::vector<ProgramPiece> pieces;
  for (const Move& m : moves) pieces.push_back(piece_of(m));
  program::add_tiles(out_, pieces, groups, tile_bytes, waits);
  out_.count_copies(moves.size());
}

Result<Program> Compiler::in_process(std::span<const Rank> destinations) {
  std::vector<Move> moves;
  for (const Rank r : destinations) {
    std::vector<Transfer> deliveries;
    planner_.for_each_delivery(r, [&](const Transfer& t) { deliveries.push_back(t); });
    const auto mine = RESHARD_TRY(copy_ops(planner_, deliveries));
    moves.insert(moves.end(), mine.begin(), mine.end());
  }
  add_reads(std::move(moves), kTileBytes, {});
  return std::move(out_).finish(0, 0);
}

/// Peers are read in turn, starting after this rank, so that not all ranks read one peer at once.
Result<Index> Compiler::add_gets(const RankPlan& part, const CompileOptions& options,
                                 const std::vector<StepId>& waits) {
  std::vector<Transfer> transfers;
  for (const Transfer& t : part.recvs)
    if (path_of(t, false, options) == PairPath::get) transfers.push_back(t);
  auto moves = RESHARD_TRY(copy_ops(planner_, transfers));
  const auto turn = [&](const Move& m) {
    return (m.src.value() - part.rank.value() + options.world) % options.world;
  };
  std::ranges::stable_sort(moves, [&](const Move& a, const Move& b) {
    return std::tuple(turn(a), a.src_slot, a.copy.src_offset) <
           std::tuple(turn(b), b.src_slot, b.copy.src_offset);
  });
  std::vector<ProgramPiece> pieces;
  for (const Move& m : moves) pieces.push_back(piece_of(m, false));
  out_.count_copies(moves.size());
  return program::add_gets(out_, pieces, staging_of_gets(options), waits);
}

void Compiler::add_part(const Packing& packing, const ChunkPart& part, const Side& side,
                        Chunk& chunk) {
  std::vector<StridedCopy> clipped;
  clip_destination(packing.copy, part.begin, part.end, clipped);
  for (StridedCopy& copy : clipped) {
    copy.dst_offset += part.at - part.begin;
    const Conversion& pack = packing.conversion;
    const BufferId at = memory(side, packing.slot);
    if (side.is_send) {
      chunk.pieces.push_back({copy, at, Builder::kStaging, pack});
    } else {
      chunk.pieces.push_back({reversed(copy), Builder::kStaging, at, {pack.to, pack.from}});
    }
  }
}

template <class F>
Chunk Compiler::chunk_of(F&& packing, std::span<const ChunkPart> parts, const Side& side) {
  Chunk chunk;
  chunk.message = {side.peer, 0, side.is_send, {Builder::kStaging, 0}, 0};
  chunk.shift = side.shift;
  const Packing& only = packing(parts[0].piece);
  if (!side.stages_all && parts.size() == 1 && only.in_one_run()) {
    chunk.message.at = {memory(side, only.slot), only.copy.src_offset + parts[0].begin};
  } else {
    for (const ChunkPart& part : parts) add_part(packing(part.piece), part, side, chunk);
  }
  out_.count_copies(chunk.pieces.size());
  return chunk;
}

Compiler::Side Compiler::side_of(std::span<const Transfer> pair, bool is_send,
                                 const CompileOptions& options) const {
  Side side;
  side.peer = is_send ? pair.front().dst : pair.front().src;
  side.is_send = is_send;
  side.from_target = is_send && pair.front().relay.hop > 0;
  side.stages_all = options.stages_all;
  const int difference = pair.front().dst.value() - pair.front().src.value();
  side.shift = (difference % options.world + options.world) % options.world;
  return side;
}

/// The messages to or from one peer.
Result<> Compiler::add_chunks(std::span<const Transfer> pair, bool is_send,
                              const CompileOptions& options) {
  const auto pieces = RESHARD_TRY(pieces_of(planner_, pair));
  const program::PairChunks cut =
      program::chunks_of(pieces, {program::most_staged(options), options.in_place_bytes});
  const Side side = side_of(pair, is_send, options);
  const auto packing = [&](std::size_t i) -> const Packing& {
    return is_send ? pieces[i].src : pieces[i].dst;
  };
  for (std::size_t c = 0; c < cut.chunks.size(); ++c) {
    Chunk chunk = chunk_of(packing, cut.parts_of(cut.chunks[c]), side);
    chunk.progress = program::progress_of(cut.chunks[c].before, cut.chunks[c].bytes, cut.bytes,
                                          chunk.shift, options);
    chunk.message.id = c;
    chunk.message.bytes = cut.chunks[c].bytes;
    chunks_.push_back(std::move(chunk));
  }
  return {};
}

/// The messages of one chain of relays to or from one peer. All ranks of the chain cut its bytes
/// into the same messages, so that each can be forwarded as soon as it has arrived.
Result<> Compiler::add_chain(std::span<const Transfer> chain, bool is_send,
                             const CompileOptions& options) {
  const RelayHop& relay = chain.front().relay;
  std::vector<Packing> packings;
  std::vector<program::ChainPiece> pieces;
  Index bytes = 0;
  for (const Transfer& t : chain) {
    packings.push_back(RESHARD_TRY(packing_of(planner_, t, is_send)));
    pieces.push_back({packings.back().copy.bytes(), planner_.conversion(t.tensor).converts()});
    bytes += pieces.back().bytes;
  }
  const Index most = program::most_of_chain(bytes, relay.hops, options);
  RESHARD_TRY(program::check_chain(bytes, std::ssize(pieces), most));
  const program::PairChunks cut =
      program::chunks_of_chain(pieces, {most, std::min(options.in_place_bytes, most)});
  const Side side = side_of(chain, is_send, options);
  const auto packing = [&](std::size_t i) -> const Packing& { return packings[i]; };
  for (std::size_t c = 0; c < cut.chunks.size(); ++c) {
    Chunk chunk = chunk_of(packing, cut.parts_of(cut.chunks[c]), side);
    chunk.progress =
        program::progress_of_chain(cut.chunks[c].before, cut.bytes, 2 * most + most / 2, relay);
    chunk.message.id = program::id_in_chain(relay, c);
    chunk.message.bytes = cut.chunks[c].bytes;
    if (!is_send) chunk.relay = Chunk::Relay::received;
    if (side.from_target) chunk.relay = Chunk::Relay::forwarded;
    chunks_.push_back(std::move(chunk));
  }
  return {};
}

Result<> Compiler::add_all_chunks(const RankPlan& part, const CompileOptions& options) {
  for (const bool is_send : {true, false}) {
    const auto& list = is_send ? part.sends : part.recvs;
    const auto key = [&](std::size_t i) {
      return std::pair(is_send ? list[i].dst : list[i].src, list[i].relay.chain);
    };
    for (std::size_t i = 0, end = 0; i < list.size(); i = end) {
      for (end = i; end < list.size() && key(end) == key(i);) ++end;
      const auto some = std::span(list).subspan(i, end - i);
      if (path_of(list[i], is_send, options) != PairPath::message) continue;
      RESHARD_TRY(list[i].relay.relayed() ? add_chain(some, is_send, options)
                                          : add_chunks(some, is_send, options));
    }
  }
  return {};
}

/// Fills the second and later places of what messages delivered.
Result<> Compiler::add_duplicates(std::span<const Transfer> messages) {
  const auto moves = RESHARD_TRY(duplicate_copies(planner_, messages));
  if (moves.empty()) return {};
  const StepId arrived = out_.tile(0, 0, out_.last_steps());
  std::vector<ProgramPiece> pieces;
  std::vector<PieceGroup> groups;
  for (const Move& m : moves) {
    groups.push_back({pieces.size(), pieces.size() + 1});
    pieces.push_back({m.copy, target(m.src, m.src_slot), target(m.dst, m.dst_slot), m.conversion});
  }
  out_.count_copies(moves.size());
  program::add_tiles(out_, pieces, groups, kTileBytesBesideMessages, {arrived});
  return {};
}

Result<Program> Compiler::rank(const RankPlan& part, const CompileOptions& options) {
  me_ = part.rank;
  std::vector<StepId> begun;
  if (options.reads) begun.push_back(out_.barrier({}));
  const Index gets = RESHARD_TRY(add_gets(part, options, begun));
  RESHARD_TRY(add_all_chunks(part, options));
  const bool has_messages = !chunks_.empty();
  program::MessageSteps messages(out_, (gets + 63) / 64 * 64, program::exchange_limits(options));
  const Index staging = messages.add(std::move(chunks_));
  out_.set_round_bits(messages.round_bits());
  std::vector<Transfer> here, sent;
  for (const Transfer& t : part.recvs) {
    const PairPath way = path_of(t, false, options);
    if (way == PairPath::mapped) here.push_back(t);
    if (way == PairPath::message) sent.push_back(t);
  }
  here.insert(here.end(), part.locals.begin(), part.locals.end());
  add_reads(RESHARD_TRY(copy_ops(planner_, here)),
            has_messages ? kTileBytesBesideMessages : kTileBytes, begun);
  RESHARD_TRY(add_duplicates(sent));
  out_.barrier(out_.last_steps());
  return std::move(out_).finish(std::max(gets, staging), 0);
}

}  // namespace

Index message_staging(const CompileOptions& options) {
  const program::ExchangeLimits limits = program::exchange_limits(options);
  return limits.ring * limits.staged;
}

Result<Program> compile_rank(const Planner& planner, const RankPlan& part,
                             const CompileOptions& options) {
  const bool converts = options.before.layout != nullptr || options.after.layout != nullptr;
  if (converts && planner.uses_relays())
    return fail(Code::unsupported, "ranks cannot relay what is converted on the way");
  if (converts) return converted::compile_converted(planner, part, options);
  return Compiler(planner, part.rank).rank(part, options);
}

Result<Program> compile_source(const Planner& planner, Rank rank, const CompileOptions& options) {
  return converted::compile_source_rows(planner, rank, options);
}

Result<Program> compile_in_process(const Planner& planner, std::span<const Rank> destinations) {
  if (planner.uses_relays())
    return fail(Code::unsupported, "one process has the memory of all ranks: none relays");
  return Compiler(planner, Rank(-1)).in_process(destinations);
}

GroupCompiler::GroupCompiler(const Planner& planner, WayBetween way, CompileOptions options)
    : planner_(planner), way_(std::move(way)), options_(std::move(options)) {
  const std::vector<Rank> ranks = planner.ranks().members();
  if (!ranks.empty()) options_.world = std::max(options_.world, ranks.back().value() + 1);
  options_.reads = options_.gets = false;
  for (const Rank r : ranks) {
    if (options_.gets) break;
    for (const Transfer& t : planner.rank_plan(r).recvs) {
      const PairPath found = t.relay.relayed() ? PairPath::message : way_(t.src, r);
      options_.reads |= found != PairPath::message;
      options_.gets |= found == PairPath::get;
    }
  }
}

Result<Program> GroupCompiler::compile(Rank rank) const {
  CompileOptions options = options_;
  options.path_from = [&](Rank src) { return way_(src, rank); };
  options.path_to = [&](Rank dst) { return way_(rank, dst); };
  return compile_rank(planner_, planner_.rank_plan(rank), options);
}

const std::shared_ptr<const ModelLayout>& memory_of(
    const SideConversion& side, bool is_target, const std::shared_ptr<const ModelLayout>& planned) {
  if (side.layout == nullptr) return planned;
  if (side.finish != nullptr) return side.finish->shared_target();
  return side.quantises == is_target ? side.layout->stored : side.layout->values;
}

}  // namespace reshard
