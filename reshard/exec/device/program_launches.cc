// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/device/program_launches.h"

#include <algorithm>
#include <array>
#include <utility>

#include "reshard/memory/cache_line.h"
#include "reshard/program/matrix_parts.h"

namespace reshard::device {
namespace {

using OpKind = ProgramOp::Kind;
using BufferKind = ProgramBuffer::Kind;

/// Scratch of tiles that run together: what they write there stays in the GPU's L2 cache.
constexpr Index kResidentScratch = Index{32} << 20;
constexpr Index kZeros = Index{4} << 10;

/// Tiles with scratch memory that run together.
Index slots_of(Index scratch_bytes, Index tiles) {
  return std::clamp<Index>(kResidentScratch / whole_lines(scratch_bytes), 1,
                           std::max<Index>(1, tiles));
}

}  // namespace

class ProgramLaunches::Builder {
 public:
  Builder(const Program& program, std::span<std::byte* const> addresses, ProgramLaunches& out)
      : program_(program), out_(out), addresses_(addresses) {}

  Result<> build(const std::shared_ptr<const cuda::Device>& device, std::byte* scratch) {
    scratch_ = scratch;
    find_residents();
    RESHARD_TRY(allocate(device));
    RESHARD_TRY(add_residents());
    for (std::size_t s = 0; s < program_.steps.size(); ++s) {
      out_.first_launch_.push_back(out_.launches_.size());
      const StepId tile(static_cast<StepId::rep>(s));
      if (is_tile(tile) && !out_.resident_[s]) RESHARD_TRY(add_together({&tile, 1}, num_slots_));
    }
    out_.first_launch_.push_back(out_.launches_.size());
    return {};
  }
  Result<> make_runners(const std::shared_ptr<const cuda::Device>& device, int most_blocks) {
    out_.copies_ = RESHARD_TRY(cuda::TileRunner::make(device, copies_, most_blocks));
    out_.amaxes_ = RESHARD_TRY(cuda::MatrixRunner::make(device, amaxes_, most_blocks));
    out_.maxima_ = RESHARD_TRY(cuda::MaximumRunner::make(device, maxima_, most_blocks));
    out_.quantise_ = RESHARD_TRY(cuda::MatrixRunner::make(device, quantise_, most_blocks));
    out_.dequantise_ = RESHARD_TRY(cuda::MatrixRunner::make(device, dequantise_, most_blocks));
    return {};
  }

 private:
  const ProgramStep& step(StepId s) const { return program_.steps[s.index()]; }
  bool is_tile(StepId s) const { return step(s).kind == ProgramStep::Kind::tile; }

  /// The level of a resident tile is above those of the tiles that it waits for.
  void find_residents() {
    const std::size_t n = program_.steps.size();
    out_.resident_.assign(n, false);
    level_.assign(n, 0);
    const bool barrier = n > 0 && program_.steps[0].kind == ProgramStep::Kind::barrier;
    for (std::size_t s = 0; s < n; ++s) {
      const StepId id(static_cast<StepId::rep>(s));
      if (!is_tile(id)) continue;
      bool resident = true;
      for (const StepId before : program_.waits_of(id)) {
        if (barrier && before == StepId(0)) continue;
        resident = resident && out_.resident_[before.index()];
        level_[s] = std::max(level_[s], level_[before.index()] + 1);
      }
      out_.resident_[s] = resident;
      if (resident) residents_.push_back(id);
    }
    std::ranges::stable_sort(residents_, {}, [&](StepId s) { return level_[s.index()]; });
  }

  /// Slots for the residents that run together, and one more for the other tiles.
  Result<> allocate(const std::shared_ptr<const cuda::Device>& device) {
    if (std::ranges::any_of(program_.ops,
                            [](const auto& op) { return op.kind == OpKind::clear; })) {
      out_.zeros_ = RESHARD_TRY(cuda::Buffer::on_device(device, kZeros));
      const auto stream = RESHARD_TRY(cuda::Stream::make(device));
      RESHARD_TRY(stream.fill(out_.zeros_.data(), std::byte{0}, kZeros));
      RESHARD_TRY(stream.synchronize());
    }
    if (program_.scratch_bytes == 0) return {};
    slot_bytes_ = whole_lines(program_.scratch_bytes);
    num_slots_ = slots_of(program_.scratch_bytes, std::ssize(residents_));
    if (scratch_ != nullptr) return {};
    out_.scratch_ = RESHARD_TRY(cuda::Buffer::on_device(device, slot_bytes_ * (num_slots_ + 1)));
    scratch_ = out_.scratch_.data();
    return {};
  }

  bool is_scratch(BufferId id) const {
    return program_.buffers[id.index()].kind == BufferKind::scratch;
  }

  bool uses_scratch(const ProgramOp& op) const {
    for (std::uint32_t i = op.first; i < op.end; ++i) {
      if (op.kind == OpKind::copy) {
        const ProgramPiece& piece = program_.pieces[i];
        if (is_scratch(piece.src) || is_scratch(piece.dst)) return true;
      } else if (op.kind == OpKind::clear) {
        if (is_scratch(program_.ranges[i].at.buffer)) return true;
      } else if (op.kind == OpKind::max) {
        const ProgramMaximum& m = program_.maxima[i];
        if (is_scratch(m.from.buffer) || is_scratch(m.to.buffer)) return true;
      } else {
        for (const PartUse& part : parts_of(program_.matrices[i], op.kind))
          if (is_scratch(part.rows.at.buffer)) return true;
      }
    }
    return false;
  }

  bool uses_scratch(StepId tile) const {
    return std::ranges::any_of(program_.ops_of(step(tile)),
                               [&](const ProgramOp& op) { return uses_scratch(op); });
  }

  /// As many tiles of one level at a time as there are slots.
  Result<> add_residents() {
    Index used = 0;
    std::size_t first = 0;
    for (std::size_t i = 0; i < residents_.size(); ++i) {
      const bool needs_slot = slot_bytes_ > 0 && uses_scratch(residents_[i]);
      const bool is_new = level_[residents_[i].index()] != level_[residents_[first].index()];
      if (is_new || used + (needs_slot ? 1 : 0) > num_slots_) {
        RESHARD_TRY(add_together(std::span(residents_).subspan(first, i - first), 0));
        first = i;
        used = 0;
      }
      used += needs_slot ? 1 : 0;
    }
    return add_together(std::span(residents_).subspan(first), 0);
  }

  /// Tiles that may run at the same time, with slots from `slot` on: their first ops, then their
  /// second ones, and so on.
  Result<> add_together(std::span<const StepId> tiles, Index slot) {
    std::size_t most = 0;
    for (const StepId tile : tiles) most = std::max(most, program_.ops_of(step(tile)).size());
    for (std::size_t i = 0; i < most; ++i) {
      Index at = slot;
      for (const StepId tile : tiles) {
        const auto ops = program_.ops_of(step(tile));
        if (i < ops.size()) RESHARD_TRY(add(ops[i], at));
        at += slot_bytes_ > 0 && uses_scratch(tile) ? 1 : 0;
      }
      end_launches();
    }
    return {};
  }

  std::byte* at(Place place, Index slot) const {
    std::byte* const base =
        is_scratch(place.buffer) ? scratch_ + slot * slot_bytes_ : addresses_[place.buffer.index()];
    return base == nullptr ? nullptr : base + place.offset;
  }
  float* float_at(Place place, Index slot) const {
    return reinterpret_cast<float*>(at(place, slot));
  }

  Result<> add(const ProgramOp& op, Index slot) {
    for (std::uint32_t i = op.first; i < op.end; ++i) {
      if (op.kind == OpKind::copy) {
        const ProgramPiece& piece = program_.pieces[i];
        RESHARD_TRY(copies_.add(
            {piece.copy, at({piece.src, 0}, slot), at({piece.dst, 0}, slot), piece.conversion}));
      } else if (op.kind == OpKind::clear) {
        const ProgramRange& range = program_.ranges[i];
        RESHARD_TRY(clear(at(range.at, slot), range.bytes));
      } else if (op.kind == OpKind::max) {
        const ProgramMaximum& m = program_.maxima[i];
        RESHARD_TRY(maxima_.add(float_at(m.from, slot), m.count, float_at(m.to, slot)));
      } else {
        RESHARD_TRY(add_matrix(op.kind, program_.matrices[i], slot));
      }
      added_[static_cast<std::size_t>(kernel_of(op.kind))] = true;
    }
    return {};
  }

  static Kernel kernel_of(OpKind kind) {
    switch (kind) {
      case OpKind::amax: return Kernel::amaxes;
      case OpKind::max: return Kernel::maxima;
      case OpKind::quantise: return Kernel::quantise;
      case OpKind::dequantise: return Kernel::dequantise;
      default: return Kernel::copies;
    }
  }

  Result<> add_matrix(OpKind kind, const ProgramMatrix& m, Index slot) {
    cuda::MatrixSlice slice;
    slice.values = {at(m.values, slot), m.values_dtype, m.end - m.begin, m.cols, m.values_row};
    slice.rows = m.rows;
    slice.begin = m.begin;
    const bool uses_amax =
        kind == OpKind::amax || (kind == OpKind::quantise && needs_amax(m.format));
    if (uses_amax) slice.amax = float_at(m.amax, slot);
    if (kind == OpKind::amax) return amaxes_.add(slice);
    slice.stored = {m.format,        at(m.data, slot),
                    m.end - m.begin, m.cols,
                    m.data_row,      at(m.scales, slot),
                    m.scales_row,    m.format.tensor_factor ? at(m.factor, slot) : nullptr};
    return (kind == OpKind::quantise ? quantise_ : dequantise_).add(slice);
  }

  /// As copies of the same zeros.
  Result<> clear(std::byte* at, Index bytes) {
    const Index whole = bytes / kZeros * kZeros;
    if (whole > 0) {
      StridedCopy copy{.run_bytes = kZeros, .num_loops = 1};
      copy.loops[0] = {bytes / kZeros, 0, kZeros};
      RESHARD_TRY(copies_.add({copy, out_.zeros_.data(), at, {}}));
    }
    return copies_.add({{.run_bytes = bytes - whole}, out_.zeros_.data(), at + whole, {}});
  }

  void end_launches() {
    end_level(Kernel::copies, copies_);
    end_level(Kernel::amaxes, amaxes_);
    end_level(Kernel::maxima, maxima_);
    end_level(Kernel::quantise, quantise_);
    end_level(Kernel::dequantise, dequantise_);
  }

  template <class Table>
  void end_level(Kernel kernel, Table& table) {
    bool& added = added_[static_cast<std::size_t>(kernel)];
    const std::size_t level = table.levels().size();
    if (std::exchange(added, false)) table.end_level();
    if (table.levels().size() > level) out_.launches_.push_back({kernel, level});
  }

  const Program& program_;
  ProgramLaunches& out_;
  std::span<std::byte* const> addresses_;  ///< by buffer.
  std::vector<std::uint32_t> level_;       ///< by step.
  std::vector<StepId> residents_;          ///< in the order of levels.
  Index slot_bytes_ = 0, num_slots_ = 1;
  std::byte* scratch_ = nullptr;
  cuda::TileTable copies_;
  cuda::MatrixTable amaxes_{cuda::MatrixWork::amax}, quantise_{cuda::MatrixWork::quantise},
      dequantise_{cuda::MatrixWork::dequantise};
  cuda::MaximumTable maxima_;
  std::array<bool, 5> added_{};  ///< by kernel: to the level that is open.
};

Result<std::vector<std::byte*>> addresses_of(const Program& program, const AddressOf& address) {
  std::vector<std::byte*> out;
  for (const ProgramBuffer& buffer : program.buffers) {
    std::byte* at = nullptr;
    if (buffer.kind != BufferKind::scratch && buffer.bytes > 0) {
      if (!buffer.mapped)
        return fail(Code::unsupported, "a GPU reads and writes only memory that is mapped");
      at = RESHARD_TRY(address(buffer));
    }
    out.push_back(at);
  }
  return out;
}

Index ProgramLaunches::scratch_bytes_of(const Program& program) {
  if (program.scratch_bytes == 0) return 0;
  return whole_lines(program.scratch_bytes) *
         (slots_of(program.scratch_bytes, std::ssize(program.steps)) + 1);
}

Result<ProgramLaunches> ProgramLaunches::make(const Program& program,
                                              std::span<std::byte* const> addresses,
                                              const std::shared_ptr<const cuda::Device>& device,
                                              const LaunchOptions& options) {
  ProgramLaunches out;
  Builder builder(program, addresses, out);
  RESHARD_TRY(builder.build(device, options.scratch));
  RESHARD_TRY(builder.make_runners(device, options.most_blocks));
  return out;
}

std::size_t ProgramLaunches::num_resident_launches() const {
  std::size_t all = 0;
  for (std::size_t i = 0; i < first_launch_.front(); ++i) {
    const Launch& next = launches_[i];
    if (next.kernel == Kernel::copies)
      all += copies_.num_launches(next.level);
    else
      all += next.kernel == Kernel::amaxes ? 2 : 1;  // Of tiles, then of matrices.
  }
  return all;
}

Result<> ProgramLaunches::launch(const cuda::Stream& stream, std::size_t first,
                                 std::size_t end) const {
  for (std::size_t i = first; i < end; ++i) RESHARD_TRY(launch(stream, launches_[i]));
  return {};
}

Result<> ProgramLaunches::launch(const cuda::Stream& stream, const Launch& next) const {
  switch (next.kernel) {
    case Kernel::amaxes: return amaxes_.launch(stream, next.level);
    case Kernel::maxima: return maxima_.launch(stream, next.level);
    case Kernel::quantise: return quantise_.launch(stream, next.level);
    case Kernel::dequantise: return dequantise_.launch(stream, next.level);
    default: return copies_.launch(stream, next.level);
  }
}

}  // namespace reshard::device
