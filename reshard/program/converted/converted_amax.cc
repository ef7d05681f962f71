// SPDX-License-Identifier: Apache-2.0
// The largest magnitudes of whole matrices, which some formats need before the first row.
#include <algorithm>

#include "reshard/program/converted/converted_compiler.h"

namespace reshard::converted {
namespace {

/// Above all ids of chunks.
constexpr std::uint64_t kAmaxId = std::uint64_t{1} << 40;

}  // namespace

Place ConvertedCompiler::amax_of(Rank r, bool is_target, std::size_t matrix) const {
  const auto at = amax_.find({is_target, r, matrix});
  return at == amax_.end() ? Place{} : Place{Builder::kStaging, at->second};
}

/// Writes the amax of what the moves deliver to a unit.
StepId ConvertedCompiler::amax_tile(const ConvertedSide& rows, std::size_t unit,
                                    std::span<const Move> moves, Index to) {
  out_.clear({{Builder::kScratch, 0}, rows.planned_bytes(unit)});
  gather(moves, {Builder::kScratch, 0});
  out_.convert(ProgramOp::Kind::amax,
               rows.matrix(unit, {Builder::kScratch, 0}, {Builder::kStaging, to},
                           [](const PartRows&) { return Place{}; }));
  return out_.tile(0, 0, waits_for(moves));
}

/// Appends tiles that find the amax of each unit in `cut`; the floats of each matrix are adjacent.
ConvertedCompiler::Floats ConvertedCompiler::find_amaxes(const ConvertedSide& rows, const Cut& cut,
                                                         std::vector<StepId>& found) {
  std::map<std::size_t, std::vector<std::size_t>> units;
  for (const auto& [unit, moves] : cut) units[rows.matrix_of(unit)].push_back(unit);
  Floats out;
  for (const auto& [matrix, list] : units) {
    const Index at = floats(list.size());
    out[matrix] = {at, static_cast<Index>(list.size())};
    for (std::size_t i = 0; i < list.size(); ++i)
      found.push_back(amax_tile(rows, list[i], cut.at(list[i]), at + static_cast<Index>(i) * 4));
  }
  return out;
}

/// Appends tiles that find the amaxes of what this rank sends: one float a receiver and matrix.
void ConvertedCompiler::add_sent_amax(std::vector<ProgramMessage>& messages,
                                      std::vector<StepId>& found) {
  std::vector<ProgramMaximum> maxima;
  for (const auto& [dst, moves] : to_) {
    const ConvertedSide& theirs = *sides_.at({true, dst});
    const Floats by_matrix = find_amaxes(theirs, theirs.cut(moves), found);
    if (by_matrix.empty()) continue;
    const Index at = floats(by_matrix.size());
    Index n = 0;
    for (const auto& [matrix, where] : by_matrix)
      maxima.push_back(
          {{Builder::kStaging, where.first}, where.second, {Builder::kStaging, at + 4 * n++}});
    messages.push_back({dst, kAmaxId, true, {Builder::kStaging, at}, 4 * n});
  }
  for (const ProgramMaximum& m : maxima) out_.max(m);
  if (!maxima.empty()) found.push_back(out_.tile(0, 0, found));
}

/// Adds the ops that write the amax of a matrix, from floats of this rank and received ones.
Index ConvertedCompiler::join_amax(const Floats& read, std::size_t matrix,
                                   const std::vector<Index>& received) {
  const auto here = read.find(matrix);
  const std::size_t n = received.size() + (here == read.end() ? 0 : 1);
  const Index all = floats(n + 1), to = all + static_cast<Index>(n) * 4;
  Index next = all;
  if (here != read.end()) {
    out_.max(
        {{Builder::kStaging, here->second.first}, here->second.second, {Builder::kStaging, next}});
    next += 4;
  }
  for (const Index at : received) {
    StridedCopy copy;
    copy.src_offset = at;
    copy.dst_offset = next;
    copy.run_bytes = 4;
    out_.copy({copy, Builder::kStaging, Builder::kStaging, {}}, false);
    next += 4;
  }
  out_.max({{Builder::kStaging, all}, static_cast<Index>(n), {Builder::kStaging, to}});
  return to;
}

/// The amaxes of what this rank receives: each rank finds those of what it reads or sends, and the
/// receiver takes the largest.
void ConvertedCompiler::add_own_amax() {
  std::vector<ProgramMessage> messages;
  std::vector<StepId> found;
  add_sent_amax(messages, found);
  Floats read;
  std::map<std::size_t, std::vector<Index>> received;  ///< by matrix.
  const auto mine = sides_.find({true, me_});
  if (mine != sides_.end()) read = find_amaxes(*mine->second, here_by_unit_, found);
  for (const auto& [src, cut] : from_by_unit_) {
    std::set<std::size_t> matrices;
    for (const auto& [unit, moves] : cut) matrices.insert(mine->second->matrix_of(unit));
    if (matrices.empty()) continue;
    const Index at = floats(matrices.size());
    Index n = 0;
    for (const std::size_t matrix : matrices) received[matrix].push_back(at + 4 * n++);
    messages.push_back({src, kAmaxId, false, {Builder::kStaging, at}, 4 * n});
  }
  // As the messages that follow: one order for the whole group.
  std::ranges::sort(messages, {}, [&](const ProgramMessage& m) {
    const int d = m.is_send ? m.peer.value() - me_.value() : me_.value() - m.peer.value();
    return std::pair((d + options_.world) % options_.world, !m.is_send);
  });
  if (!messages.empty()) found.push_back(out_.exchange(messages, 0, 0, found));
  for (std::size_t u = 0; mine != sides_.end() && u < mine->second->size(); ++u) {
    const std::size_t matrix = mine->second->matrix_of(u);
    if (!amax_.contains({true, me_, matrix}))
      amax_[{true, me_, matrix}] = join_amax(read, matrix, received[matrix]);
  }
  amax_known_.push_back(out_.tile(0, 0, std::move(found)));
}

/// The amaxes of the matrices that a source quantises, from its memory.
void ConvertedCompiler::add_source_amax(Rank r) {
  const ConvertedSide& rows = *sides_.at({false, r});
  std::map<std::size_t, std::vector<std::size_t>> units;
  for (std::size_t u = 0; u < rows.size(); ++u) units[rows.matrix_of(u)].push_back(u);
  std::vector<StepId> found;
  std::vector<ProgramMaximum> maxima;
  for (const auto& [matrix, list] : units) {
    const Index at = floats(list.size() + 1), to = at + static_cast<Index>(list.size()) * 4;
    for (std::size_t i = 0; i < list.size(); ++i) {
      got_ = 0;
      out_.convert(ProgramOp::Kind::amax,
                   rows.matrix(list[i], {Builder::kScratch, 0},
                               {Builder::kStaging, at + static_cast<Index>(i) * 4},
                               [&](const PartRows& part) { return source_place(r, part); }));
      found.push_back(out_.tile(0, 0, r == me_ ? std::vector<StepId>{} : begun_));
    }
    maxima.push_back(
        {{Builder::kStaging, at}, static_cast<Index>(list.size()), {Builder::kStaging, to}});
    amax_[{false, r, matrix}] = to;
  }
  for (const ProgramMaximum& m : maxima) out_.max(m);
  amax_known_.push_back(out_.tile(0, 0, std::move(found)));
}

void ConvertedCompiler::add_amax() {
  if (produces() && options_.before.quantises && needs_amax(options_.before.layout->choice))
    for (const auto& [key, rows] : sides_)
      if (!key.first && rows->size() > 0 && reads_source(key.second)) add_source_amax(key.second);
  if (consumes() && options_.after.quantises && needs_amax(options_.after.layout->choice))
    add_own_amax();
}

}  // namespace reshard::converted
