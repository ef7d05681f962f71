// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/host/bound_program.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "reshard/exec/host/matrix_rows.h"
#include "reshard/memory/cache_line.h"
#include "reshard/transform/quantise.h"

namespace reshard::host {
namespace {

using Kind = ProgramOp::Kind;

/// Reads that are issued to the transport at once.
constexpr std::size_t kMaxGets = 4096;

FloatMatrix rows_of(const ProgramMatrix& m, std::byte* values) {
  return {values, m.values_dtype, m.end - m.begin, m.cols, m.values_row};
}

float read_float(const std::byte* at) {
  float value = 0;
  std::memcpy(&value, at, sizeof value);
  return value;
}

void write_float(std::byte* at, float value) { std::memcpy(at, &value, sizeof value); }

/// NaN if any float is NaN.
float maximum(const std::byte* floats, Index count) {
  float most = 0;
  for (Index k = 0; k < count && !std::isnan(most); ++k) {
    const float value = read_float(floats + k * 4);
    most = std::isnan(value) || value > most ? value : most;
  }
  return most;
}

}  // namespace

Result<BoundProgram> BoundProgram::make(const Program& program,
                                        const ProgramEnvironment& environment,
                                        const Resolve& place) {
  BoundProgram out;
  out.program_ = &program;
  out.environment_ = environment;
  RESHARD_TRY(out.resolve(place));
  const int workers = environment.pool->size();
  if (program.scratch_bytes > 0) {
    out.scratch_stride_ = whole_lines(program.scratch_bytes);
    out.scratch_ =
        RESHARD_TRY(HostBuffer::allocate(out.scratch_stride_ * workers, {.prefault_threads = 1}));
    std::size_t most = 0;
    for (const ProgramOp& op : program.ops)
      if (op.kind == Kind::copy) most = std::max<std::size_t>(most, op.end - op.first);
    out.placed_.resize(static_cast<std::size_t>(workers), std::vector<CopyTask>(most));
  }
  out.bind_pieces();
  return out;
}

Result<> BoundProgram::resolve(const Resolve& place) {
  using Of = ProgramBuffer::Kind;
  for (const ProgramBuffer& buffer : program_->buffers) {
    BufferPlace at;
    if (buffer.kind == Of::staging) at.address = environment_.staging.data();
    if (buffer.kind == Of::source || (buffer.kind == Of::target && buffer.mapped))
      at = RESHARD_TRY(place(buffer));
    places_.push_back(at);
  }
  return {};
}

void BoundProgram::bind_pieces() {
  for (const ProgramPiece& piece : program_->pieces) {
    tasks_.push_back({piece.copy, places_[piece.src.index()].address,
                      places_[piece.dst.index()].address, piece.conversion});
    uses_scratch_.push_back(is_scratch(piece.src) || is_scratch(piece.dst));
  }
  if (std::ranges::any_of(program_->ops, [](const auto& op) { return op.kind == Kind::get; }))
    batch_.reserve(kMaxGets);
}

std::byte* BoundProgram::at(Place place, int worker) const {
  std::byte* const base = is_scratch(place.buffer)
                              ? const_cast<std::byte*>(scratch_.data()) + scratch_stride_ * worker
                              : places_[place.buffer.index()].address;
  return base == nullptr ? nullptr : base + place.offset;
}

/// An op's copies, with the worker's scratch.
std::span<const CopyTask> BoundProgram::tasks_of(const ProgramOp& op, int worker) {
  const std::size_t n = op.end - op.first;
  const auto tasks = std::span<const CopyTask>(tasks_).subspan(op.first, n);
  if (scratch_.empty()) return tasks;
  auto& placed = placed_[static_cast<std::size_t>(worker)];
  bool moved = false;
  for (std::size_t i = 0; i < n; ++i) {
    placed[i] = tasks[i];
    if (!uses_scratch_[op.first + i]) continue;
    const ProgramPiece& piece = program_->pieces[op.first + i];
    if (is_scratch(piece.src)) placed[i].src = at({piece.src, 0}, worker);
    if (is_scratch(piece.dst)) placed[i].dst = at({piece.dst, 0}, worker);
    moved = true;
  }
  return moved ? std::span<const CopyTask>(placed.data(), n) : tasks;
}

Result<> BoundProgram::run(const ProgramStep& tile, int worker) {
  bool streams = false;
  for (const ProgramOp& op : program_->ops_of(tile)) {
    if (op.kind == Kind::copy && op.streams && observer_ != nullptr) {
      compare(tasks_of(op, worker), worker);
    } else if (op.kind == Kind::copy) {
      run_copies(tasks_of(op, worker), op.streams ? CopyHint::streaming : CopyHint::cached);
    } else if (op.kind == Kind::get) {
      RESHARD_TRY(run_gets(op));
    } else if (op.kind == Kind::put) {
      RESHARD_TRY(run_puts(op, worker));
    } else {
      run_other(op, worker);
    }
    streams |= op.streams;
  }
  if (streams) copy_fence();
  return {};
}

Result<> BoundProgram::flush() {
  auto done = batch_.empty() ? Result<>() : environment_.transport->get(batch_);
  batch_.clear();
  return done;
}

Result<> BoundProgram::run_gets(const ProgramOp& op) {
  Result<> done;
  for (std::uint32_t i = op.first; i < op.end && done; ++i) {
    const ProgramPiece& piece = program_->pieces[i];
    const BufferPlace& source = places_[piece.src.index()];
    std::byte* const into = at({piece.dst, 0}, 0);
    for_each_run(piece.copy, [&](Index src, Index dst, Index bytes) {
      if (!done) return;
      batch_.push_back({source.remote,
                        static_cast<std::size_t>(source.offset + src),
                        {into + dst, static_cast<std::size_t>(bytes)}});
      if (batch_.size() == kMaxGets) done = flush();
    });
  }
  if (done) return flush();
  batch_.clear();
  return done;
}

Result<> BoundProgram::run_puts(const ProgramOp& op, int worker) {
  Result<> done;
  for (const ProgramPiece& piece : program_->pieces_of(op)) {
    const std::byte* const from = at({piece.src, 0}, worker);
    for_each_run(piece.copy, [&](Index src, Index dst, Index bytes) {
      if (!done) return;
      done = (*environment_.puts)(program_->buffers[piece.dst.index()], dst,
                                  {from + src, static_cast<std::size_t>(bytes)});
    });
  }
  return done;
}

void BoundProgram::run_other(const ProgramOp& op, int worker) {
  for (std::uint32_t i = op.first; i < op.end; ++i) {
    if (op.kind == Kind::clear) {
      const ProgramRange& range = program_->ranges[i];
      std::memset(at(range.at, worker), 0, static_cast<std::size_t>(range.bytes));
    } else if (op.kind == Kind::max) {
      const ProgramMaximum& m = program_->maxima[i];
      write_float(at(m.to, worker), maximum(at(m.from, worker), m.count));
    } else {
      run_matrix(op.kind, program_->matrices[i], worker);
    }
  }
}

void BoundProgram::run_matrix(ProgramOp::Kind kind, const ProgramMatrix& m, int worker) {
  std::byte* const values = at(m.values, worker);
  if (kind == Kind::amax) return write_float(at(m.amax, worker), amax(rows_of(m, values)));
  const float most =
      needs_amax(m.format) && kind == Kind::quantise ? read_float(at(m.amax, worker)) : 0;
  const RowPlaces places{values, at(m.data, worker), at(m.scales, worker),
                         m.format.tensor_factor ? at(m.factor, worker) : nullptr};
  if (observer_ != nullptr && m.unit >= 0) return observe_matrix(kind, m, places, most, worker);
  convert_rows(kind, m, places, most);
}

Result<> BoundProgram::observe(ConversionVerifier* observer) {
  observer_ = observer;
  if (observer == nullptr || !seen_.empty()) return {};
  const auto workers = static_cast<std::size_t>(environment_.pool->size());
  for (const ProgramOp& op : program_->ops)
    for (std::uint32_t i = op.first; i < op.end; ++i)
      if (op.kind == Kind::quantise || op.kind == Kind::dequantise)
        compared_stride_ =
            std::max(compared_stride_, scratch_to_compare(op.kind, program_->matrices[i]));
  compared_ = RESHARD_TRY(HostBuffer::allocate(compared_stride_ * static_cast<Index>(workers),
                                               {.prefault_threads = 1}));
  seen_.resize(workers);
  return {};
}

/// Rows whose output is in scratch are converted there: copies take their parts to the target.
void BoundProgram::observe_matrix(ProgramOp::Kind kind, const ProgramMatrix& m,
                                  const RowPlaces& places, float amax, int worker) {
  const auto unit = static_cast<std::size_t>(m.unit);
  seen_[static_cast<std::size_t>(worker)] = unit;
  if (is_scratch(kind == Kind::quantise ? m.data.buffer : m.values.buffer)) {
    convert_rows(kind, m, places, amax);
  } else if (!converted_equal(kind, m, places, amax,
                              compared_.data() + compared_stride_ * worker)) {
    observer_->differs(unit);
  }
  observer_->see(unit, places);
}

void BoundProgram::compare(std::span<const CopyTask> tasks, int worker) {
  bool equal = true;
  for (const CopyTask& task : tasks)
    for_each_run(task.copy, [&](Index src, Index dst, Index bytes) {
      equal = equal &&
              std::memcmp(task.src + src, task.dst + dst, static_cast<std::size_t>(bytes)) == 0;
    });
  if (!equal) observer_->differs(seen_[static_cast<std::size_t>(worker)]);
}

}  // namespace reshard::host
