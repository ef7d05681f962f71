// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/slow_executor_testutil.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <tuple>

#include "reshard/base/hash.h"
#include "reshard/transform/convert.h"
#include "reshard/transform/quantise.h"

namespace reshard {
namespace {

using Op = ProgramOp::Kind;
using Bytes = std::vector<std::byte>;

/// One rank and its memory.
struct SlowRank {
  const Program* p = nullptr;
  std::vector<std::byte*> memory = {};  ///< by buffer.
  Bytes staging = {}, scratch = {};
  std::vector<int> state = {};  ///< by step: 0 waits, 1 has begun, 2 is done.
  std::byte* at(const Place& place) const { return memory[place.buffer.index()] + place.offset; }
};

float read_f32(const std::byte* at) {
  float value = 0;
  std::memcpy(&value, at, sizeof value);
  return value;
}

void run_piece(const SlowRank& r, const ProgramPiece& piece) {
  const bool converts = piece.conversion.converts();
  const int from = bits(piece.conversion.from.dtype) / 8;
  const int to = bits(piece.conversion.to.dtype) / 8;
  for_each_run(piece.copy, [&](Index src, Index dst, Index bytes) {
    const std::byte* const in = r.at({piece.src, src});
    std::byte* const out = r.at({piece.dst, dst});
    if (!converts) {
      std::copy_n(in, bytes, out);
      return;
    }
    for (Index i = 0; i < bytes / to; ++i)
      convert_values(piece.conversion, in + i * from, out + i * to, 1);
  });
}

void run_maximum(const SlowRank& r, const ProgramMaximum& m) {
  float most = 0;
  for (Index k = 0; k < m.count; ++k) {
    const float value = read_f32(r.at(m.from) + k * 4);
    if (std::isnan(value) || value > most) most = value;
  }
  std::memcpy(r.at(m.to), &most, sizeof most);
}

void run_matrix(const SlowRank& r, Op kind, const ProgramMatrix& m) {
  const FloatMatrix rows{r.at(m.values), m.values_dtype, m.end - m.begin, m.cols, m.values_row};
  if (kind == Op::amax) {
    const float most = amax(rows);
    std::memcpy(r.at(m.amax), &most, sizeof most);
    return;
  }
  // The kernels count rows from the first of the matrix.
  const bool swizzled = m.format.order == ScaleOrder::swizzled;
  const Index step = swizzled ? 128 : m.format.block_rows;
  const FloatMatrix values{rows.data - m.begin * m.values_row, m.values_dtype, m.rows, m.cols,
                           m.values_row};
  const QuantMatrix stored{
      m.format,     r.at(m.data) - m.begin * m.data_row,
      m.rows,       m.cols,
      m.data_row,   r.at(m.scales) - (step == 0 ? 0 : m.begin / step * m.scales_row),
      m.scales_row, m.format.tensor_factor ? r.at(m.factor) : nullptr};
  if (kind == Op::dequantise) return dequantise_rows(stored, values, m.begin, m.end);
  quantise_rows(values, stored, m.begin, m.end, needs_amax(m.format) ? read_f32(r.at(m.amax)) : 0);
}

void run_op(const SlowRank& r, const ProgramOp& op) {
  for (std::uint32_t i = op.first; i < op.end; ++i) {
    if (op.kind == Op::copy || op.kind == Op::get || op.kind == Op::put) {
      run_piece(r, r.p->pieces[i]);
    } else if (op.kind == Op::clear) {
      const ProgramRange& range = r.p->ranges[i];
      std::fill_n(r.at(range.at), range.bytes, std::byte{0});
    } else if (op.kind == Op::max) {
      run_maximum(r, r.p->maxima[i]);
    } else {
      run_matrix(r, op.kind, r.p->matrices[i]);
    }
  }
}

class SlowGroup {
 public:
  SlowGroup(std::span<const Program> programs, const RankBuffers& source, const RankBuffers& target,
            std::optional<std::uint64_t> seed)
      : random_(seed.value_or(1)), any_(seed.has_value()), ranks_(programs.size()) {
    for (std::size_t i = 0; i < programs.size(); ++i) {
      SlowRank& r = ranks_[i];
      r.p = &programs[i];
      r.state.resize(r.p->steps.size());
      r.staging.resize(static_cast<std::size_t>(r.p->staging_bytes));
      r.scratch.resize(static_cast<std::size_t>(r.p->scratch_bytes));
      spoil(r.staging);
      for (const ProgramBuffer& b : r.p->buffers) {
        using Kind = ProgramBuffer::Kind;
        r.memory.push_back(b.kind == Kind::staging   ? r.staging.data()
                           : b.kind == Kind::scratch ? r.scratch.data()
                           : b.kind == Kind::source  ? source.at(b.rank, b.slot)
                                                     : target.at(b.rank, b.slot));
      }
    }
  }

  bool run() {
    while (true) {
      std::vector<std::pair<SlowRank*, std::size_t>> may;
      bool left = false;
      for (SlowRank& r : ranks_) left |= add_runnable(r, may);
      if (may.empty()) return !left;
      const auto& [rank, step] = may[any_ ? random_() % may.size() : 0];
      begin(*rank, step);
    }
  }

 private:
  void spoil(Bytes& bytes) {
    std::uint64_t garbage = random_();
    for (std::size_t i = 0; i < bytes.size(); i += sizeof garbage) {
      garbage = mix64(garbage);
      std::memcpy(bytes.data() + i, &garbage, std::min(sizeof garbage, bytes.size() - i));
    }
  }

  bool add_runnable(SlowRank& r, std::vector<std::pair<SlowRank*, std::size_t>>& may) const {
    bool left = false, in_turn = true;
    for (std::size_t s = 0; s < r.state.size(); ++s) {
      left |= r.state[s] != 2;
      if (r.state[s] != 0) continue;
      const auto waits = r.p->waits_of(StepId(static_cast<std::uint32_t>(s)));
      const bool exchange = r.p->steps[s].kind == ProgramStep::Kind::exchange;
      if (std::ranges::all_of(waits, [&](StepId w) { return r.state[w.index()] == 2; }) &&
          (in_turn || !exchange))
        may.emplace_back(&r, s);
      if (exchange) in_turn = false;
    }
    return left;
  }

  void begin(SlowRank& r, std::size_t s) {
    const ProgramStep& step = r.p->steps[s];
    r.state[s] = 1;
    if (step.kind == ProgramStep::Kind::tile) {
      spoil(r.scratch);
      for (const ProgramOp& op : r.p->ops_of(step)) run_op(r, op);
      r.state[s] = 2;
    } else if (step.kind == ProgramStep::Kind::barrier) {
      auto& all = barriers_[barrier_of(r, s)];
      all.push_back(&r.state[s]);
      if (all.size() == ranks_.size())
        for (int* each : all) *each = 2;
    } else {
      open_[{&r, s}] = step.end - step.first;
      for (const ProgramMessage& m : r.p->messages_of(step)) meet(r, s, m);
    }
  }

  static std::size_t barrier_of(const SlowRank& r, std::size_t s) {
    std::size_t n = 0;
    for (std::size_t i = 0; i < s; ++i) n += r.p->steps[i].kind == ProgramStep::Kind::barrier;
    return n;
  }

  /// Carries the bytes of a message once both sides have begun.
  void meet(SlowRank& r, std::size_t s, const ProgramMessage& m) {
    const Rank me = r.p->rank;
    const auto key = std::tuple(m.is_send ? me : m.peer, m.is_send ? m.peer : me, m.id);
    const auto other = begun_.find(key);
    if (other == begun_.end()) {
      begun_[key] = {&r, s, &m};
      return;
    }
    const auto [peer, step, theirs] = other->second;
    std::memcpy(m.is_send ? peer->at(theirs->at) : r.at(m.at),
                m.is_send ? r.at(m.at) : peer->at(theirs->at), static_cast<std::size_t>(m.bytes));
    if (--open_[{&r, s}] == 0) r.state[s] = 2;
    if (--open_[{peer, step}] == 0) peer->state[step] = 2;
  }

  std::mt19937_64 random_;
  bool any_;
  std::vector<SlowRank> ranks_;
  std::map<std::size_t, std::vector<int*>> barriers_;                ///< begun, by number.
  std::map<std::pair<SlowRank*, std::size_t>, std::uint32_t> open_;  ///< messages of exchanges.
  std::map<std::tuple<Rank, Rank, std::uint64_t>,
           std::tuple<SlowRank*, std::size_t, const ProgramMessage*>>
      begun_;
};

}  // namespace

bool run_slowly(std::span<const Program> programs, const RankBuffers& source,
                const RankBuffers& target, std::optional<std::uint64_t> seed) {
  return SlowGroup(programs, source, target, seed).run();
}

}  // namespace reshard
