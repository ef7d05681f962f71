// SPDX-License-Identifier: Apache-2.0
#include "reshard/program/builder.h"

#include <algorithm>

namespace reshard::program {
namespace {

std::uint32_t size_of(const auto& table) { return static_cast<std::uint32_t>(table.size()); }

}  // namespace

Builder::Builder(Rank rank, std::uint64_t plan_digest) {
  out_.rank = rank;
  out_.plan_digest = plan_digest;
  for (const auto kind : {ProgramBuffer::Kind::staging, ProgramBuffer::Kind::scratch})
    out_.buffers.push_back({kind, Rank(), SlotId(), 0, true});
  out_.first_wait.push_back(0);
}

BufferId Builder::tensor(ProgramBuffer::Kind kind, Rank rank, SlotId slot, Index bytes,
                         bool mapped) {
  const auto [at, added] =
      tensors_.try_emplace({kind, rank, slot}, BufferId(size_of(out_.buffers)));
  if (added) out_.buffers.push_back({kind, rank, slot, bytes, mapped});
  return at->second;
}

void Builder::add(const ProgramPiece& piece, Kind kind, bool streams) {
  if (piece.copy.bytes() == 0) return;
  const bool extends = out_.ops.size() > first_op_ && out_.ops.back().kind == kind &&
                       out_.ops.back().streams == streams;
  if (!extends) out_.ops.push_back({kind, streams, size_of(out_.pieces), 0});
  out_.pieces.push_back(piece);
  out_.ops.back().end = size_of(out_.pieces);
}

void Builder::copy(const ProgramPiece& piece, bool streams) { add(piece, Kind::copy, streams); }
void Builder::get(const ProgramPiece& piece) { add(piece, Kind::get, false); }
void Builder::put(const ProgramPiece& piece) { add(piece, Kind::put, false); }

void Builder::clear(const ProgramRange& range) {
  out_.ops.push_back({Kind::clear, false, size_of(out_.ranges), size_of(out_.ranges) + 1});
  out_.ranges.push_back(range);
}

void Builder::convert(ProgramOp::Kind kind, const ProgramMatrix& matrix) {
  out_.ops.push_back({kind, false, size_of(out_.matrices), size_of(out_.matrices) + 1});
  out_.matrices.push_back(matrix);
}

void Builder::max(const ProgramMaximum& maximum) {
  out_.ops.push_back({Kind::max, false, size_of(out_.maxima), size_of(out_.maxima) + 1});
  out_.maxima.push_back(maximum);
}

StepId Builder::step(const ProgramStep& step, std::vector<StepId> waits) {
  std::ranges::sort(waits);
  waits.erase(std::unique(waits.begin(), waits.end()), waits.end());
  for (const StepId w : waits) awaited_[w.index()] = true;
  out_.waits.insert(out_.waits.end(), waits.begin(), waits.end());
  out_.first_wait.push_back(size_of(out_.waits));
  out_.steps.push_back(step);
  awaited_.push_back(false);
  return StepId(size_of(out_.steps) - 1);
}

StepId Builder::tile(Index bytes, Index delivered, std::vector<StepId> waits) {
  const ProgramStep made{ProgramStep::Kind::tile, static_cast<std::uint32_t>(first_op_),
                         size_of(out_.ops), bytes, delivered};
  first_op_ = out_.ops.size();
  return step(made, std::move(waits));
}

StepId Builder::exchange(std::span<const ProgramMessage> messages, Index bytes, Index delivered,
                         std::vector<StepId> waits) {
  const std::uint32_t first = size_of(out_.messages);
  out_.messages.insert(out_.messages.end(), messages.begin(), messages.end());
  return step({ProgramStep::Kind::exchange, first, size_of(out_.messages), bytes, delivered},
              std::move(waits));
}

StepId Builder::barrier(std::vector<StepId> waits) {
  return step({ProgramStep::Kind::barrier, 0, 0, 0, 0}, std::move(waits));
}

std::vector<StepId> Builder::last_steps() const {
  std::vector<StepId> out;
  for (std::size_t s = 0; s < awaited_.size(); ++s)
    if (!awaited_[s]) out.emplace_back(static_cast<std::uint32_t>(s));
  return out;
}

Program Builder::finish(Index staging_bytes, Index scratch_bytes) && {
  out_.staging_bytes = out_.buffers[kStaging.index()].bytes = staging_bytes;
  out_.scratch_bytes = out_.buffers[kScratch.index()].bytes = scratch_bytes;
  return std::move(out_);
}

}  // namespace reshard::program
