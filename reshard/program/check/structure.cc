// SPDX-License-Identifier: Apache-2.0
#include "reshard/program/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "reshard/base/int128.h"
#include "reshard/program/check/wrong.h"
#include "reshard/program/matrix_parts.h"
#include "reshard/transform/quantise.h"

namespace reshard {
namespace {

/// No buffer is larger, so that no sum of a few sizes overflows.
constexpr Index kMaxBytes = Index{1} << 60;

bool known(DType dtype) { return dtype <= kLastDType; }
bool known(ValueMap map) { return map <= ValueMap::minus_one; }

/// Whether a place is read or written, and by whom.
enum class Use : std::uint8_t { read, write, get, put };

class StructureCheck {
 public:
  explicit StructureCheck(const Program& program) : p_(program) {}
  Result<> run();

 private:
  template <class... Args>
  tl::unexpected<Error> wrong(fmt::format_string<Args...> format, Args&&... args) const {
    return check::wrong(p_, fmt::format(format, std::forward<Args>(args)...));
  }
  Result<> buffers() const;
  Result<> waits() const;
  Result<> steps() const;
  Result<> ops() const;
  Result<> messages() const;
  Result<> piece(std::size_t i, ProgramOp::Kind kind) const;
  Result<> conversion(std::size_t i) const;
  Result<> matrix(std::size_t i, ProgramOp::Kind kind) const;
  Result<> maximum(std::size_t i) const;
  Result<> use(const std::string& what, BufferId buffer, Index begin, Int128 bytes, Use use) const;
  Result<> strided(const std::string& what, BufferId buffer, const StridedCopy& copy,
                   bool is_source, Use how) const;
  std::size_t table_of(ProgramOp::Kind kind) const;

  const Program& p_;
};

/// Checks `bytes` bytes at `begin` of a buffer.
Result<> StructureCheck::use(const std::string& what, BufferId id, Index begin, Int128 bytes,
                             Use use) const {
  if (id.index() >= p_.buffers.size())
    return wrong("{}: buffer {} of {}", what, id.value(), p_.buffers.size());
  const ProgramBuffer& buffer = p_.buffers[id.index()];
  if (begin < 0 || bytes < 0 || bytes > buffer.bytes || begin > buffer.bytes - bytes)
    return wrong("{}: {} bytes at {} of buffer {}, which has {}", what,
                 static_cast<Index>(std::min<Int128>(bytes, kMaxBytes)), begin, id.value(),
                 buffer.bytes);
  const bool writes = use == Use::write || use == Use::put;
  if (writes && buffer.kind == ProgramBuffer::Kind::source)
    return wrong("{}: writes buffer {}, which is a source", what, id.value());
  const bool far = use == Use::get || use == Use::put;
  if (buffer.mapped == far)
    return wrong("{}: {} buffer {}, which is{} mapped", what,
                 use == Use::get   ? "gets from"
                 : use == Use::put ? "puts into"
                                   : "uses",
                 id.value(), buffer.mapped ? "" : " not");
  if (use == Use::get && buffer.kind != ProgramBuffer::Kind::source)
    return wrong("{}: gets from buffer {}, which is no source", what, id.value());
  return {};
}

Result<> StructureCheck::buffers() const {
  std::set<std::tuple<ProgramBuffer::Kind, Rank, SlotId>> seen;
  for (std::size_t i = 0; i < p_.buffers.size(); ++i) {
    const ProgramBuffer& b = p_.buffers[i];
    using Kind = ProgramBuffer::Kind;
    if (b.kind > Kind::target) return wrong("buffer {}: no known kind", i);
    if (b.bytes < 0 || b.bytes > kMaxBytes) return wrong("buffer {}: {} bytes", i, b.bytes);
    const bool local = b.kind == Kind::source || b.kind == Kind::target;
    if (!seen.emplace(b.kind, local ? b.rank : Rank(), local ? b.slot : SlotId()).second)
      return wrong("buffer {}: another buffer is the same memory", i);
    if (!b.mapped && !local) return wrong("buffer {}: not mapped, but of this process", i);
    const bool staging = b.kind == Kind::staging;
    if (!local && b.bytes != (staging ? p_.staging_bytes : p_.scratch_bytes))
      return wrong("buffer {}: {} bytes, but the program has {} of {}", i, b.bytes,
                   staging ? p_.staging_bytes : p_.scratch_bytes, staging ? "staging" : "scratch");
    if (local && (b.rank.value() < 0 || b.slot.value() < 0))
      return wrong("buffer {}: local tensor {} of rank {}", i, b.slot.value(), b.rank.value());
    if (b.kind == Kind::target && p_.rank.value() >= 0 && b.rank != p_.rank)
      return wrong("buffer {}: a target of rank {}", i, b.rank.value());
  }
  return {};
}

Result<> StructureCheck::waits() const {
  const std::size_t n = p_.steps.size();
  if (p_.first_wait.size() != n + 1 || p_.first_wait.front() != 0 ||
      p_.first_wait.back() != p_.waits.size() || !std::ranges::is_sorted(p_.first_wait))
    return wrong("first_wait must have {} ascending entries, from 0 to {}", n + 1, p_.waits.size());
  for (std::size_t s = 0; s < n; ++s) {
    const auto waits = p_.waits_of(StepId(static_cast<std::uint32_t>(s)));
    for (std::size_t i = 0; i < waits.size(); ++i) {
      if (waits[i].index() >= s)
        return wrong("step {}: waits for step {}, which is not earlier", s, waits[i].value());
      if (i > 0 && waits[i] <= waits[i - 1]) return wrong("step {}: waits must ascend", s);
    }
  }
  return {};
}

Result<> StructureCheck::steps() const {
  std::uint32_t op = 0, message = 0;
  Index bytes = 0;
  for (std::size_t s = 0; s < p_.steps.size(); ++s) {
    const ProgramStep& step = p_.steps[s];
    if (step.kind > ProgramStep::Kind::barrier) return wrong("step {}: no known kind", s);
    if (step.delivered < 0 || step.bytes < step.delivered || step.bytes > kMaxBytes - bytes)
      return wrong("step {}: {} bytes, {} of them delivered", s, step.bytes, step.delivered);
    bytes += step.bytes;
    if (step.kind == ProgramStep::Kind::barrier) {
      if (step.first != step.end) return wrong("step {}: a barrier has no ops or messages", s);
      continue;
    }
    const bool tile = step.kind == ProgramStep::Kind::tile;
    std::uint32_t& next = tile ? op : message;
    const std::size_t size = tile ? p_.ops.size() : p_.messages.size();
    if (step.first != next || step.end < next || step.end > size)
      return wrong("step {}: {} [{}, {}), but {} of {} are next", s, tile ? "ops" : "messages",
                   step.first, step.end, next, size);
    if (!tile && step.first == step.end) return wrong("step {}: an exchange of no messages", s);
    next = step.end;
  }
  if (op != p_.ops.size()) return wrong("op {} is of no step", op);
  if (message != p_.messages.size()) return wrong("message {} is of no step", message);
  return {};
}

std::size_t StructureCheck::table_of(ProgramOp::Kind kind) const {
  switch (kind) {
    case ProgramOp::Kind::copy:
    case ProgramOp::Kind::get:
    case ProgramOp::Kind::put: return p_.pieces.size();
    case ProgramOp::Kind::clear: return p_.ranges.size();
    case ProgramOp::Kind::max: return p_.maxima.size();
    default: return p_.matrices.size();
  }
}

Result<> StructureCheck::ops() const {
  using Kind = ProgramOp::Kind;
  std::uint32_t next[4] = {0, 0, 0, 0};
  const std::size_t sizes[4] = {p_.pieces.size(), p_.ranges.size(), p_.maxima.size(),
                                p_.matrices.size()};
  for (std::size_t i = 0; i < p_.ops.size(); ++i) {
    const ProgramOp& op = p_.ops[i];
    if (op.kind > Kind::dequantise) return wrong("op {}: no known kind", i);
    const bool pieces = op.kind <= Kind::put;
    const int table = pieces ? 0 : op.kind == Kind::clear ? 1 : op.kind == Kind::max ? 2 : 3;
    if (op.first != next[table] || op.end <= op.first || op.end > table_of(op.kind))
      return wrong("op {}: entries [{}, {}), but {} of {} are next", i, op.first, op.end,
                   next[table], sizes[table]);
    next[table] = op.end;
    for (std::size_t k = op.first; k < op.end; ++k) {
      if (pieces) RESHARD_TRY(piece(k, op.kind));
      if (table == 1)
        RESHARD_TRY(use(fmt::format("range {}", k), p_.ranges[k].at.buffer, p_.ranges[k].at.offset,
                        p_.ranges[k].bytes, Use::write));
      if (table == 2) RESHARD_TRY(maximum(k));
      if (table == 3) RESHARD_TRY(matrix(k, op.kind));
    }
  }
  for (int t = 0; t < 4; ++t)
    if (next[t] != sizes[t]) return wrong("entry {} of table {} is of no op", next[t], t);
  return {};
}

/// One side of a strided copy. All strides are counted forwards, so the last run ends last.
Result<> StructureCheck::strided(const std::string& what, BufferId buffer, const StridedCopy& copy,
                                 bool is_source, Use how) const {
  const Index first = is_source ? copy.src_offset : copy.dst_offset;
  Int128 bytes = is_source ? copy.source_bytes(copy.run_bytes) : copy.run_bytes;
  for (int k = 0; k < copy.num_loops; ++k) {
    const auto& loop = copy.loops[static_cast<std::size_t>(k)];
    const Index stride = is_source ? loop.src_stride : loop.dst_stride;
    if (loop.count < 1 || stride < 0) return wrong("{}: loop {} goes nowhere", what, k);
    bytes += static_cast<Int128>(loop.count - 1) * stride;
    if (bytes > kMaxBytes) break;
  }
  return use(what, buffer, first, bytes, how);
}

Result<> StructureCheck::conversion(std::size_t i) const {
  const ProgramPiece& piece = p_.pieces[i];
  const StridedCopy& c = piece.copy;
  const auto [from, to] = piece.conversion;
  if (!known(from.dtype) || !known(to.dtype) || !known(from.map) || !known(to.map))
    return wrong("piece {}: no known form", i);
  const bool converts = piece.conversion.converts();
  if (converts && (!is_convertible(from.dtype) || !is_convertible(to.dtype)))
    return wrong("piece {}: no conversion from {} to {}", i, to_string(from), to_string(to));
  const int src = converts ? bits(from.dtype) / 8 : 1, dst = converts ? bits(to.dtype) / 8 : 1;
  const bool wide = src != dst;
  if (c.src_width != (wide ? src : 1) || c.dst_width != (wide ? dst : 1))
    return wrong("piece {}: elements of {} and {} bytes", i, c.src_width, c.dst_width);
  if (c.run_bytes % dst != 0)
    return wrong("piece {}: a run of {} bytes ends inside an element", i, c.run_bytes);
  return {};
}

Result<> StructureCheck::piece(std::size_t i, ProgramOp::Kind kind) const {
  using Kind = ProgramOp::Kind;
  const ProgramPiece& piece = p_.pieces[i];
  const StridedCopy& c = piece.copy;
  if (c.num_loops < 0 || c.num_loops > kMaxDims) return wrong("piece {}: {} loops", i, c.num_loops);
  if (c.run_bytes < 1 || c.run_bytes > kMaxBytes)
    return wrong("piece {}: runs of {} bytes", i, c.run_bytes);
  RESHARD_TRY(conversion(i));
  if (kind != Kind::copy && piece.conversion.converts())
    return wrong("piece {}: only copies convert", i);
  RESHARD_TRY(strided(fmt::format("source of piece {}", i), piece.src, c, true,
                      kind == Kind::get ? Use::get : Use::read));
  RESHARD_TRY(strided(fmt::format("destination of piece {}", i), piece.dst, c, false,
                      kind == Kind::put ? Use::put : Use::write));
  // No byte is written twice, so a piece has at most the bytes of its destination.
  Int128 bytes = c.run_bytes;
  for (int k = 0; k < c.num_loops && bytes <= kMaxBytes; ++k)
    bytes *= c.loops[static_cast<std::size_t>(k)].count;
  if (bytes > p_.buffers[piece.dst.index()].bytes)
    return wrong("piece {}: more bytes than its destination has", i);
  return {};
}

Result<> StructureCheck::maximum(std::size_t i) const {
  const ProgramMaximum& m = p_.maxima[i];
  if (m.count < 0 || m.count > kMaxBytes / 4) return wrong("maximum {}: of {} floats", i, m.count);
  RESHARD_TRY(use(fmt::format("source of maximum {}", i), m.from.buffer, m.from.offset, m.count * 4,
                  Use::read));
  return use(fmt::format("destination of maximum {}", i), m.to.buffer, m.to.offset, 4, Use::write);
}

Result<> StructureCheck::matrix(std::size_t i, ProgramOp::Kind kind) const {
  const ProgramMatrix& m = p_.matrices[i];
  if (!known(m.format.data) || !known(m.format.scale)) return wrong("matrix {}: no known dtype", i);
  if (!is_convertible(m.values_dtype)) return wrong("matrix {}: values are no floats", i);
  if (auto checked = check_quant_format(m.format, m.rows, m.cols); !checked)
    return wrong("matrix {}: {}", i, checked.error().message);
  if (m.begin < 0 || m.begin > m.end || m.end > m.rows)
    return wrong("matrix {}: rows [{}, {}) of {}", i, m.begin, m.end, m.rows);
  if (!has_whole_blocks(m, kind))
    return wrong("matrix {}: rows [{}, {}) of {} are not whole blocks", i, m.begin, m.end, m.rows);
  for (const PartUse& part : parts_of(m, kind)) {
    const MatrixRows& r = part.rows;
    if (r.rows == 0 || r.row == 0) continue;
    // Rows that overlap would be written twice.
    if (r.rows > 1 && r.stride < r.row)
      return wrong("{} of matrix {}: rows of {} bytes, {} apart", name(part.part), i, r.row,
                   r.stride);
    const Int128 bytes = static_cast<Int128>(r.rows - 1) * r.stride + r.row;
    RESHARD_TRY(use(fmt::format("{} of matrix {}", name(part.part), i), r.at.buffer, r.at.offset,
                    bytes, part.writes ? Use::write : Use::read));
  }
  return {};
}

Result<> StructureCheck::messages() const {
  for (std::size_t i = 0; i < p_.messages.size(); ++i) {
    const ProgramMessage& m = p_.messages[i];
    const std::string what = fmt::format("message {}", i);
    if (m.peer.value() < 0 || m.peer == p_.rank || p_.rank.value() < 0)
      return wrong("{}: its peer is rank {}", what, m.peer.value());
    if (m.bytes < 1) return wrong("{}: {} bytes", what, m.bytes);
    RESHARD_TRY(use(what, m.at.buffer, m.at.offset, m.bytes, m.is_send ? Use::read : Use::write));
    const ProgramBuffer& b = p_.buffers[m.at.buffer.index()];
    if (b.kind == ProgramBuffer::Kind::scratch) return wrong("{}: is in scratch", what);
    if (b.kind == ProgramBuffer::Kind::source && b.rank != p_.rank)
      return wrong("{}: is in memory of rank {}", what, b.rank.value());
  }
  return {};
}

Result<> StructureCheck::run() {
  if (p_.rank.value() < -1) return wrong("no such rank");
  for (const Index bytes : {p_.staging_bytes, p_.scratch_bytes})
    if (bytes < 0 || bytes > kMaxBytes) return wrong("{} bytes of staging or scratch", bytes);
  RESHARD_TRY(buffers());
  RESHARD_TRY(waits());
  RESHARD_TRY(steps());
  RESHARD_TRY(ops());
  return messages();
}

}  // namespace

Result<> check_structure(const Program& program) { return StructureCheck(program).run(); }

}  // namespace reshard
