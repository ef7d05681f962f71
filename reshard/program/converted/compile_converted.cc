// SPDX-License-Identifier: Apache-2.0
#include "reshard/program/converted/compile_converted.h"

#include <algorithm>

#include "reshard/layout/clip.h"
#include "reshard/program/converted/converted_compiler.h"
#include "reshard/program/tiles.h"

namespace reshard::converted {
namespace {

using Kind = ProgramBuffer::Kind;

/// The bytes of a move, packed in the order of its loops, in the narrower of its two forms.
PairPiece packed(const Move& m, bool source_is_memory) {
  const bool wide = m.copy.dst_width > m.copy.src_width;
  PairPiece out;
  out.converts = m.conversion.converts();
  out.src.slot = m.src_slot;
  out.dst.slot = m.dst_slot;
  out.src.copy = m.copy;
  out.dst.copy = reversed(m.copy);
  const StoredForm wire = wide ? m.conversion.from : m.conversion.to;
  out.src.conversion = {m.conversion.from, wire};
  out.dst.conversion = {m.conversion.to, wire};
  const Index run = wide ? m.copy.source_bytes(m.copy.run_bytes) : m.copy.run_bytes;
  StridedCopy& one = wide ? out.src.copy : out.dst.copy;  // The side whose form travels.
  one.src_width = one.dst_width = 1;
  out.src.copy.dst_offset = out.dst.copy.dst_offset = 0;
  out.src.copy.run_bytes = out.dst.copy.run_bytes = run;
  Index inner = run;
  for (int i = m.copy.num_loops - 1; i >= 0; --i) {
    const auto k = static_cast<std::size_t>(i);
    out.src.copy.loops[k].dst_stride = out.dst.copy.loops[k].dst_stride = inner;
    inner *= m.copy.loops[k].count;
  }
  out.bytes = inner;
  out.src.copy = merged(out.src.copy);
  out.dst.copy = merged(out.dst.copy);
  // A source that is not in memory is never one run that can be sent as it is.
  if (!source_is_memory && out.src.copy.num_loops == 0) {
    out.src.copy.num_loops = 1;
    out.src.copy.loops[0] = {1, out.src.copy.run_bytes, out.src.copy.run_bytes};
  }
  return out;
}

}  // namespace

Place ConvertedCompiler::get(Rank r, SlotId slot, const StridedCopy& copy) {
  const Place at{Builder::kScratch,
                 whole_lines(planned_bytes_) + whole_lines(produced_bytes_) + got_};
  StridedCopy fetch = copy;
  fetch.dst_offset += at.offset;
  out_.get({fetch, source(r, slot), Builder::kScratch, {}});
  got_ += whole_lines(copy.bytes());
  most_got_ = std::max(most_got_, got_);
  return at;
}

/// The place to read a part of the rows that a source converts.
Place ConvertedCompiler::source_place(Rank r, const PartRows& part) {
  if (!is_got(r)) return {source(r, part.slot), part.offset};
  StridedCopy whole;
  whole.src_offset = part.offset;
  whole.run_bytes = part.bytes;
  return get(r, part.slot, whole);
}

/// The most bytes of a batch; equal on all ranks.
Index ConvertedCompiler::batch_bytes(bool is_target) const {
  const Index most = std::min(options_.in_place_bytes, most_staged(options_));
  if (is_target) return most;
  // A sender makes rows once for all that get them if the messages with them fit in one exchange.
  const auto targets = static_cast<Index>(planner_.shared_target()->ranks().size());
  return std::min(most, exchange_limits(options_).staged / std::max<Index>(targets, 1));
}

/// The rows that a rank's side converts; made once.
Result<const ConvertedSide*> ConvertedCompiler::side(bool is_target, Rank r) {
  auto& made = sides_[{is_target, r}];
  if (made == nullptr)
    made = std::make_unique<ConvertedSide>(
        RESHARD_TRY(ConvertedSide::make(is_target ? options_.after : options_.before, is_target, r,
                                        options_.unit_bytes, batch_bytes(is_target))));
  return made.get();
}

Result<> ConvertedCompiler::add_peer(std::span<const Transfer> pair, bool is_send) {
  const Rank peer = is_send ? pair.front().dst : pair.front().src;
  const PairPath way = is_send ? options_.path_to(peer) : options_.path_from(peer);
  if (is_send && way != PairPath::message) return {};
  const auto moves = RESHARD_TRY(copy_ops(planner_, pair));
  auto& into = way != PairPath::message ? here_ : is_send ? to_[peer] : from_[peer];
  into.insert(into.end(), moves.begin(), moves.end());
  if (produces()) RESHARD_TRY(side(false, is_send ? me_ : peer));
  if (consumes()) RESHARD_TRY(side(true, is_send ? peer : me_));
  return {};
}

Result<> ConvertedCompiler::find_moves() {
  for (const bool is_send : {true, false}) {
    const auto& list = is_send ? part_.sends : part_.recvs;
    const auto peer = [&](std::size_t i) { return is_send ? list[i].dst : list[i].src; };
    for (std::size_t i = 0, end = 0; i < list.size(); i = end) {
      for (end = i; end < list.size() && peer(end) == peer(i);) ++end;
      RESHARD_TRY(add_peer(std::span(list).subspan(i, end - i), is_send));
    }
  }
  const auto locals = RESHARD_TRY(copy_ops(planner_, part_.locals));
  here_.insert(here_.end(), locals.begin(), locals.end());
  if (produces() && !locals.empty()) RESHARD_TRY(side(false, me_));
  if (!consumes()) return {};
  const ConvertedSide* mine = RESHARD_TRY(side(true, me_));
  here_by_unit_ = mine->cut(here_);
  for (const auto& [src, moves] : from_) from_by_unit_[src] = mine->cut(moves);
  for (std::size_t u = 0; u < mine->size(); ++u)
    planned_bytes_ = std::max(planned_bytes_, mine->planned_bytes(u));
  if (options_.after.finish != nullptr) RESHARD_TRY(find_finish());
  for (const auto& [dst, moves] : to_) {
    const ConvertedSide& theirs = *sides_.at({true, dst});
    for (std::size_t u = 0; theirs.needs_amax() && u < theirs.size(); ++u)
      planned_bytes_ = std::max(planned_bytes_, theirs.planned_bytes(u));
  }
  return {};
}

/// The rows in the form that this rank makes, as if it were a source, and what it keeps of them.
Result<> ConvertedCompiler::find_finish() {
  const Planner& finish = *options_.after.finish;
  made_ = std::make_unique<ConvertedSide>(
      RESHARD_TRY(ConvertedSide::make(options_.after, false, me_, options_.unit_bytes)));
  kept_ = made_->cut(RESHARD_TRY(copy_ops(finish, finish.rank_plan(me_).locals)));
  return {};
}

/// Reads of peers' memory wait until all ranks have begun.
std::vector<StepId> ConvertedCompiler::waits_for(std::span<const Move> moves) const {
  const bool reads = std::ranges::any_of(moves, [&](const Move& m) { return m.src != me_; });
  return reads ? begun_ : std::vector<StepId>{};
}

/// Appends the ops that write the moves' bytes at `into`; makes them first if no memory has them.
void ConvertedCompiler::gather(std::span<const Move> moves, Place into) {
  const auto copy = [&](const Move& m, BufferId from, Index offset) {
    StridedCopy moved = m.copy;
    moved.src_offset += offset;
    moved.dst_offset += into.offset;
    const bool memory = out_.buffer(into.buffer).kind == Kind::target;
    out_.copy({moved, from, into.buffer, m.conversion}, memory);
  };
  std::map<Rank, std::vector<Move>> made;
  std::vector<std::pair<Move, Index>> got;
  for (const Move& m : moves) {
    if (produces()) {
      made[m.src].push_back(m);
    } else if (is_got(m.src)) {
      StridedCopy finish;
      const StridedCopy fetch = side_by_side(m.copy, finish);
      Move left = m;
      left.copy = finish;
      got.emplace_back(left, get(m.src, m.src_slot, fetch).offset);
    } else {
      copy(m, source(m.src, m.src_slot), 0);
    }
  }
  for (const auto& [m, offset] : got) copy(m, Builder::kScratch, offset);
  const Index at = whole_lines(planned_bytes_);
  for (const auto& [src, theirs] : made) {
    const ConvertedSide& rows = *sides_.at({false, src});
    for (const auto& [unit, parts] : rows.cut(theirs)) {
      out_.convert(
          rows.kind(),
          rows.matrix(unit, {Builder::kScratch, at}, amax_of(src, false, rows.matrix_of(unit)),
                      [&, r = src](const PartRows& part) { return source_place(r, part); }));
      for (const Move& m : parts) copy(m, Builder::kScratch, at);
    }
  }
}

/// Appends the ops that make each unit of to_make_ once, and write what messages take of it.
void ConvertedCompiler::add_made() {
  for (const auto& [unit, moves] : to_make_) {
    const ConvertedSide& rows = *sides_.at({false, me_});
    const Place amax = amax_of(me_, false, rows.matrix_of(unit));
    out_.convert(rows.kind(),
                 rows.matrix(unit, {Builder::kScratch, 0}, amax,
                             [&](const PartRows& part) { return source_place(me_, part); }));
    for (const Move& m : moves)
      out_.copy({m.copy, Builder::kScratch, Builder::kStaging, m.conversion}, false);
  }
  to_make_.clear();
}

/// The moves of a chunk by unit, from local tensors to packed bytes or the other way.
ConvertedCompiler::Cut ConvertedCompiler::moves_of(const BatchPieces& of,
                                                   std::span<const ChunkPart> parts,
                                                   bool is_send) const {
  Cut out;
  std::vector<StridedCopy> clipped;
  for (const ChunkPart& part : parts) {
    const Packing& side = of.mine(part, is_send);
    clipped.clear();
    clip_destination(side.copy, part.begin, part.end, clipped);
    std::vector<Move>& moves = out[of.units[part.piece]];
    for (StridedCopy& copy : clipped) {
      copy.dst_offset += part.at - part.begin;
      const Conversion& pack = side.conversion;
      if (is_send) {
        moves.push_back({me_, me_, side.slot, side.slot, copy, pack});
      } else {
        moves.push_back({me_, me_, side.slot, side.slot, reversed(copy), {pack.to, pack.from}});
      }
    }
  }
  return out;
}

/// The place of a chunk whose bytes lie one after another on this side, as they are sent.
std::optional<Place> ConvertedCompiler::one_run(const BatchPieces& of,
                                                std::span<const ChunkPart> parts, bool is_send) {
  const bool in_buffer = !is_send && consumes();
  if (options_.stages_all && !in_buffer) return std::nullopt;
  const Packing& first = of.mine(parts[0], is_send);
  const auto begin = [&](const ChunkPart& part) {
    return of.mine(part, is_send).copy.src_offset + part.begin - part.at;
  };
  for (const ChunkPart& part : parts) {
    const Packing& mine = of.mine(part, is_send);
    const bool in_same = in_buffer || mine.slot == first.slot;
    if (!mine.in_one_run() || !in_same || begin(part) != begin(parts[0])) return std::nullopt;
  }
  const Index at = begin(parts[0]) + parts[0].at;
  if (in_buffer) return Place{Builder::kStaging, at};
  return Place{is_send ? source(me_, first.slot) : target(first.slot), at};
}

/// The chunk, packed in staging by the tile before its exchange.
Chunk ConvertedCompiler::send_of(const BatchPieces& of, std::span<const ChunkPart> parts,
                                 Chunk chunk) {
  chunk.pack = [this, cut = moves_of(of, parts, true)](Index at) {
    std::vector<Move> all;
    for (const auto& [unit, moves] : cut) {
      std::vector<Move>& into = consumes() ? all : to_make_[unit];
      for (Move m : moves) {
        if (!consumes()) m.copy.dst_offset += at;
        into.push_back(m);
      }
    }
    if (consumes()) gather(all, {Builder::kStaging, at});
  };
  return chunk;
}

Chunk ConvertedCompiler::chunk_of(const BatchPieces& of, std::span<const ChunkPart> parts,
                                  Rank peer, bool is_send) {
  Chunk chunk;
  chunk.message = {peer, 0, is_send, {Builder::kStaging, 0}, 0};
  if (!is_send && consumes())
    chunk.receive_buffer = static_cast<std::int64_t>(buffer_of_.at(of.batch));
  if (const auto place = one_run(of, parts, is_send)) {
    chunk.message.at = *place;
    return chunk;
  }
  if (is_send) return send_of(of, parts, std::move(chunk));
  for (const auto& [unit, moves] : moves_of(of, parts, false))
    for (const Move& m : moves)
      chunk.pieces.push_back({m.copy, Builder::kStaging,
                              consumes() ? Builder::kStaging : target(m.dst_slot), m.conversion});
  return chunk;
}

/// The messages of one batch to or from one peer.
void ConvertedCompiler::add_batch_chunks(Rank peer, bool is_send, const BatchPieces& of,
                                         std::uint64_t progress) {
  const PairChunks cut = chunks_of(of.pieces, {most_staged(options_), options_.in_place_bytes});
  const int difference = is_send ? peer.value() - me_.value() : me_.value() - peer.value();
  for (const auto& c : cut.chunks) {
    if (!is_send && consumes()) ++buffers_[buffer_of_.at(of.batch)].chunks;
    Chunk chunk = chunk_of(of, cut.parts_of(c), peer, is_send);
    chunk.progress = progress;
    chunk.shift = (difference % options_.world + options_.world) % options_.world;
    chunk.message.id = next_id_[peer]++;
    chunk.message.bytes = c.bytes;
    out_.count_copies(chunk.pieces.size());
    chunks_.push_back(std::move(chunk));
  }
}

/// The messages with one peer, in the order of the receiver's units if it converts, or else of the
/// sender's.
Result<> ConvertedCompiler::add_chunks_with(Rank peer, bool is_send, std::span<const Move> moves) {
  next_id_[peer] = 0;
  const bool is_mine = is_send != consumes();
  const ConvertedSide& rows = *sides_.at({consumes(), is_mine ? me_ : peer});
  const Cut cut = !is_send && consumes() ? from_by_unit_.at(peer) : rows.cut(moves);
  for (auto unit = cut.begin(); unit != cut.end();) {
    BatchPieces of{rows.batch_of(unit->first), {}, {}};
    for (; unit != cut.end() && rows.batch_of(unit->first) == of.batch; ++unit)
      for (Move m : unit->second) {
        if (consumes()) m.copy.dst_offset += rows.at_in_batch(unit->first);
        of.pieces.push_back(packed(m, !produces()));
        of.units.push_back(unit->first);
      }
    const auto progress = (static_cast<std::uint64_t>(of.batch) << 32) / rows.batches();
    add_batch_chunks(peer, is_send, of, progress);
  }
  return {};
}

/// Bytes of a unit of this rank that it reads from memory.
Index ConvertedCompiler::read_bytes(std::size_t unit) const {
  const auto here = here_by_unit_.find(unit);
  if (here == here_by_unit_.end()) return 0;
  Index bytes = 0;
  for (const Move& m : here->second) bytes += m.copy.bytes();
  return bytes;
}

/// The memory in which the messages to a batch of this rank's units arrive.
ReceiveBuffer ConvertedCompiler::receive_buffer(std::size_t batch,
                                                std::span<const std::size_t> units) {
  const ConvertedSide& mine = *sides_.at({true, me_});
  ReceiveBuffer buffer;
  buffer.bytes = mine.batch_bytes(batch);
  for (const std::size_t u : units) {
    buffer.clears |= arrives_.at(u) + read_bytes(u) < mine.wanted_bytes(u);
  }
  buffer.convert = [this, &mine, list = std::vector(units.begin(), units.end())](
                       Index at, std::vector<StepId> waits) {
    PlacedUnits placed;
    for (const std::size_t u : list)
      placed.push_back({u, {Builder::kStaging, at + mine.at_in_batch(u)}});
    return convert(placed, std::move(waits));
  };
  return buffer;
}

/// Batches of this rank whose bytes arrive in messages, at least in part.
void ConvertedCompiler::add_receive_buffers() {
  if (!consumes()) return;
  const ConvertedSide& mine = *sides_.at({true, me_});
  for (const auto& [src, cut] : from_by_unit_)
    for (const auto& [unit, moves] : cut)
      for (const Move& m : moves) arrives_[unit] += m.copy.bytes();
  std::map<std::size_t, std::vector<std::size_t>> units;
  for (const auto& [unit, bytes] : arrives_) units[mine.batch_of(unit)].push_back(unit);
  for (const auto& [batch, list] : units) {
    buffer_of_[batch] = buffers_.size();
    buffers_.push_back(receive_buffer(batch, list));
  }
}

Result<> ConvertedCompiler::add_chunks() {
  for (const auto& [peer, moves] : to_) RESHARD_TRY(add_chunks_with(peer, true, moves));
  for (const auto& [peer, moves] : from_) {
    RESHARD_TRY(add_chunks_with(peer, false, moves));
  }
  return {};
}

/// The tile that reads the parts of units that are in memory of this rank's reach, and converts
/// them.
StepId ConvertedCompiler::convert(const PlacedUnits& units, std::vector<StepId> waits) {
  got_ = 0;
  Index bytes = 0;
  std::vector<StepId> begun;
  for (const auto& [unit, at] : units) {
    if (const auto here = here_by_unit_.find(unit); here != here_by_unit_.end()) {
      if (begun.empty()) begun = waits_for(here->second);
      gather(here->second, at);
    }
    bytes += convert_rows(unit, at);
  }
  waits.insert(waits.end(), begun.begin(), begun.end());
  if (sides_.at({true, me_})->needs_amax())
    waits.insert(waits.end(), amax_known_.begin(), amax_known_.end());
  return out_.tile(bytes, bytes, std::move(waits));
}

/// Appends the ops that convert a unit whose planned form is at `at`. Returns the bytes that reach
/// the target.
Index ConvertedCompiler::convert_rows(std::size_t unit, Place at) {
  const ConvertedSide& mine = *sides_.at({true, me_});
  const Place amax = amax_of(me_, true, mine.matrix_of(unit));
  if (made_ == nullptr) {
    ProgramMatrix rows = mine.matrix(unit, at, amax, [&](const PartRows& part) -> Place {
      return {target(part.slot), part.offset};
    });
    rows.unit = static_cast<Index>(unit);
    out_.convert(mine.kind(), rows);
    return mine.memory_bytes(unit);
  }
  const auto kept = kept_.find(unit);
  if (kept == kept_.end()) return 0;
  const Place made{Builder::kScratch, whole_lines(planned_bytes_)};
  ProgramMatrix rows = made_->matrix(unit, made, amax, [&](const PartRows&) { return at; });
  rows.unit = static_cast<Index>(unit);
  out_.convert(made_->kind(), rows);
  Index bytes = 0;
  for (const Move& m : kept->second) {
    StridedCopy copy = m.copy;
    copy.src_offset += made.offset;
    out_.copy({copy, made.buffer, target(m.dst_slot), m.conversion}, true);
    bytes += copy.bytes();
  }
  return bytes;
}

/// Appends the tiles that need no message: those of this rank's units; or, if only senders convert,
/// those of the units in memory that this rank reads.
void ConvertedCompiler::add_tiles() {
  if (consumes()) {
    const auto mine = sides_.find({true, me_});
    for (std::size_t u = 0; mine != sides_.end() && u < mine->second->size(); ++u) {
      if (arrives_.contains(u)) continue;
      if (read_bytes(u) < mine->second->wanted_bytes(u))
        out_.clear({{Builder::kScratch, 0}, mine->second->planned_bytes(u)});
      convert({{u, {Builder::kScratch, 0}}}, {});
    }
    return;
  }
  std::map<Rank, std::vector<Move>> by_source;
  for (const Move& m : here_) by_source[m.src].push_back(m);
  for (const auto& [src, moves] : by_source)
    for (const auto& [unit, parts] : sides_.at({false, src})->cut(moves)) {
      Index bytes = 0;
      for (const Move& m : parts) bytes += m.copy.bytes();
      const ConvertedSide& rows = *sides_.at({false, src});
      got_ = 0;
      out_.convert(
          rows.kind(),
          rows.matrix(unit, {Builder::kScratch, 0}, amax_of(src, false, rows.matrix_of(unit)),
                      [&, r = src](const PartRows& part) { return source_place(r, part); }));
      for (const Move& m : parts)
        out_.copy({m.copy, Builder::kScratch, target(m.dst_slot), m.conversion}, true);
      std::vector<StepId> waits = waits_for(parts);
      waits.insert(waits.end(), amax_known_.begin(), amax_known_.end());
      out_.tile(bytes, bytes, std::move(waits));
    }
}

Result<Program> ConvertedCompiler::run() {
  if (options_.reads) begun_.push_back(out_.barrier({}));
  RESHARD_TRY(find_moves());
  for (const auto& [key, rows] : sides_)
    for (std::size_t u = 0; !key.first && u < rows->size(); ++u)
      produced_bytes_ = std::max(produced_bytes_, rows->planned_bytes(u));
  for (std::size_t u = 0; made_ != nullptr && u < made_->size(); ++u)
    produced_bytes_ = std::max(produced_bytes_, made_->planned_bytes(u));
  add_amax();
  add_receive_buffers();
  RESHARD_TRY(add_chunks());
  MessageSteps messages(out_, whole_lines(floats_), exchange_limits(options_), amax_known_);
  messages.before_tile([this] { add_made(); });
  const Index staging = messages.add(std::move(chunks_), std::move(buffers_));
  out_.set_round_bits(messages.round_bits());
  add_tiles();
  out_.count_copies(here_.size());
  out_.barrier(out_.last_steps());
  const Index scratch = whole_lines(planned_bytes_) + whole_lines(produced_bytes_) + most_got_;
  return std::move(out_).finish(std::max(whole_lines(floats_), staging), scratch);
}

Result<Program> ConvertedCompiler::run_source() {
  const ConvertedSide* mine = RESHARD_TRY(side(false, me_));
  add_amax();
  for (std::size_t u = 0; u < mine->size(); ++u) {
    produced_bytes_ = std::max(produced_bytes_, mine->planned_bytes(u));
    ProgramMatrix rows =
        mine->matrix(u, {Builder::kScratch, 0}, amax_of(me_, false, mine->matrix_of(u)),
                     [&](const PartRows& part) { return source_place(me_, part); });
    rows.unit = static_cast<Index>(u);
    out_.convert(mine->kind(), rows);
    out_.tile(mine->planned_bytes(u), 0, amax_known_);
  }
  return std::move(out_).finish(whole_lines(floats_), whole_lines(produced_bytes_));
}

Result<Program> compile_source_rows(const Planner& planner, Rank rank,
                                    const CompileOptions& options) {
  CompileOptions of = options;
  of.after = {};
  return ConvertedCompiler(planner, RankPlan{rank, {}, {}, {}}, of).run_source();
}

Result<Program> compile_converted(const Planner& planner, const RankPlan& part,
                                  const CompileOptions& options) {
  return ConvertedCompiler(planner, part, options).run();
}

}  // namespace reshard::converted
