// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/host/bound_program.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "reshard/transform/quantise.h"

namespace reshard::host {
namespace {

constexpr Index kLine = 64;
/// Rows of a tile of swizzled scales.
constexpr Index kScaleTileRows = 128;

FloatMatrix rows_of(const ProgramMatrix& m, std::byte* values) {
  return {values, m.values_dtype, m.end - m.begin, m.cols, m.values_row};
}

float read_float(const std::byte* at) {
  float value = 0;
  std::memcpy(&value, at, sizeof value);
  return value;
}

void write_float(std::byte* at, float value) { std::memcpy(at, &value, sizeof value); }

}  // namespace

Result<BoundProgram> BoundProgram::make(const Program& program, std::span<std::byte> staging,
                                        int workers, const Resolve& place) {
  BoundProgram out;
  out.program_ = &program;
  RESHARD_TRY(out.resolve(staging, place));
  if (program.scratch_bytes > 0) {
    out.scratch_stride_ = (program.scratch_bytes + kLine - 1) / kLine * kLine;
    out.scratch_ =
        RESHARD_TRY(HostBuffer::allocate(out.scratch_stride_ * workers, {.prefault_threads = 1}));
    std::size_t most = 0;
    for (const ProgramOp& op : program.ops)
      if (op.kind == ProgramOp::Kind::copy) most = std::max<std::size_t>(most, op.end - op.first);
    out.placed_.resize(static_cast<std::size_t>(workers), std::vector<CopyTask>(most));
  }
  out.bind_pieces();
  out.bind_messages();
  return out;
}

Result<> BoundProgram::resolve(std::span<std::byte> staging, const Resolve& place) {
  for (const ProgramBuffer& buffer : program_->buffers) {
    const bool local =
        buffer.kind == ProgramBuffer::Kind::source || buffer.kind == ProgramBuffer::Kind::target;
    if (local) {
      places_.push_back(RESHARD_TRY(place(buffer)));
    } else {
      const bool staged = buffer.kind == ProgramBuffer::Kind::staging;
      places_.push_back({staged ? staging.data() : nullptr, nullptr, 0});
    }
  }
  return {};
}

void BoundProgram::bind_pieces() {
  for (const ProgramPiece& piece : program_->pieces) {
    tasks_.push_back({piece.copy, places_[piece.src.index()].address,
                      places_[piece.dst.index()].address, piece.conversion});
    uses_scratch_.push_back(is_scratch(piece.src) || is_scratch(piece.dst));
  }
  for (const ProgramOp& op : program_->ops) has_gets_ |= op.kind == ProgramOp::Kind::get;
}

void BoundProgram::bind_messages() {
  for (const ProgramStep& step : program_->steps) {
    if (step.kind != ProgramStep::Kind::exchange) continue;
    first_send_.push_back(sends_.size());
    first_recv_.push_back(recvs_.size());
    for (const ProgramMessage& m : program_->messages_of(step)) {
      std::byte* const data = places_[m.at.buffer.index()].address + m.at.offset;
      const auto n = static_cast<std::size_t>(m.bytes);
      if (m.is_send) {
        sends_.push_back({m.peer, MessageId(m.id), {data, n}});
      } else {
        recvs_.push_back({m.peer, MessageId(m.id), {data, n}});
      }
    }
  }
  first_send_.push_back(sends_.size());
  first_recv_.push_back(recvs_.size());
}

BoundProgram::Messages BoundProgram::messages(std::size_t exchange) const {
  return {std::span(sends_).subspan(first_send_[exchange],
                                    first_send_[exchange + 1] - first_send_[exchange]),
          std::span(recvs_).subspan(first_recv_[exchange],
                                    first_recv_[exchange + 1] - first_recv_[exchange])};
}

BoundProgram::Read BoundProgram::read(std::size_t piece) const {
  const ProgramPiece& p = program_->pieces[piece];
  const BufferPlace& from = places_[p.src.index()];
  // Only worker 0 reads.
  return {from.remote, from.offset, &p.copy, at({p.dst, 0}, 0)};
}

std::byte* BoundProgram::at(Place place, int worker) const {
  std::byte* const base = is_scratch(place.buffer)
                              ? const_cast<std::byte*>(scratch_.data()) + scratch_stride_ * worker
                              : places_[place.buffer.index()].address;
  return base == nullptr ? nullptr : base + place.offset;
}

void BoundProgram::run_copies_of(const ProgramOp& op, int worker) {
  const CopyHint hint = op.streams ? CopyHint::streaming : CopyHint::cached;
  const std::size_t n = op.end - op.first;
  const auto tasks = std::span<const CopyTask>(tasks_).subspan(op.first, n);
  if (scratch_.empty()) return run_copies(tasks, hint);
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
  run_copies(moved ? std::span<const CopyTask>(placed.data(), n) : tasks, hint);
}

Result<> BoundProgram::run(const ProgramOp& op, int worker) {
  switch (op.kind) {
    case ProgramOp::Kind::copy: run_copies_of(op, worker); return {};
    case ProgramOp::Kind::get: return fail(Code::unsupported, "a get needs the transport");
    case ProgramOp::Kind::clear:
      for (std::uint32_t i = op.first; i < op.end; ++i)
        std::memset(at(program_->ranges[i].at, worker), 0,
                    static_cast<std::size_t>(program_->ranges[i].bytes));
      return {};
    case ProgramOp::Kind::max:
      for (std::uint32_t i = op.first; i < op.end; ++i) {
        const ProgramMaximum& m = program_->maxima[i];
        const std::byte* const from = at(m.from, worker);
        float most = 0;
        for (Index k = 0; k < m.count && !std::isnan(most); ++k) {
          const float value = read_float(from + k * 4);
          most = std::isnan(value) || value > most ? value : most;
        }
        write_float(at(m.to, worker), most);
      }
      return {};
    default: break;
  }
  for (std::uint32_t i = op.first; i < op.end; ++i)
    run_matrix(op.kind, program_->matrices[i], worker);
  return {};
}

void BoundProgram::run_matrix(ProgramOp::Kind kind, const ProgramMatrix& m, int worker) {
  std::byte* const values = at(m.values, worker);
  if (kind == ProgramOp::Kind::amax)
    return write_float(at(m.amax, worker), amax(rows_of(m, values)));
  const float most = needs_amax(m.format) && kind == ProgramOp::Kind::quantise
                         ? read_float(at(m.amax, worker))
                         : 0;
  std::byte* const factor = m.format.tensor_factor ? at(m.factor, worker) : nullptr;
  const Place& written = kind == ProgramOp::Kind::quantise ? m.data : m.values;
  const bool into_target =
      program_->buffers[written.buffer.index()].kind == ProgramBuffer::Kind::target;
  if (observer_ != nullptr && into_target)
    return observer_->consume({values, at(m.data, worker), at(m.scales, worker), factor}, most,
                              worker);
  // The kernels take row numbers of the whole matrix.
  const FloatMatrix plain{values - m.begin * m.values_row, m.values_dtype, m.rows, m.cols,
                          m.values_row};
  const bool swizzled = m.format.order == ScaleOrder::swizzled;
  const Index step = swizzled ? kScaleTileRows : m.format.block_rows;
  const Index first_scales = step == 0 ? 0 : m.begin / step * m.scales_row;
  const QuantMatrix stored{m.format,     at(m.data, worker) - m.begin * m.data_row,
                           m.rows,       m.cols,
                           m.data_row,   at(m.scales, worker) - first_scales,
                           m.scales_row, m.format.tensor_factor ? at(m.factor, worker) : nullptr};
  if (kind == ProgramOp::Kind::dequantise) return dequantise_rows(stored, plain, m.begin, m.end);
  quantise_rows(plain, stored, m.begin, m.end, most);
}

}  // namespace reshard::host
