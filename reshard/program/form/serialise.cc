// SPDX-License-Identifier: Apache-2.0
// One description of the form, ProgramCoder, is instantiated to write it and to read it. Numbers
// are LEB128. What an entry of a table shares with the entry before it is left out, as its flags
// say; offsets count from where the last entry in the same buffer ended. So contiguous copies of
// one tensor, cut into pieces, take a few bytes each.
#include "reshard/program/form/serialise.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>

#include "reshard/base/bytes.h"
#include "reshard/base/hash.h"
#include "reshard/model/quant/files.h"
#include "reshard/program/check.h"

namespace reshard {
namespace {

constexpr std::string_view kMagic = "RSPROG\r\n";
constexpr std::uint64_t kAny = ~std::uint64_t{0};
/// Sizes and offsets; sums of thousands of them fit in an Index.
constexpr Index kMaxBytes = Index{1} << 50;
constexpr Index kMaxProgramRank = Index{1} << 30;

Index plus(Index a, Index b) {
  return static_cast<Index>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}
Index minus(Index a, Index b) {
  return static_cast<Index>(static_cast<std::uint64_t>(a) - static_cast<std::uint64_t>(b));
}
Index times(Index a, Index b) {
  return static_cast<Index>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
}

/// Writes each value that it is given.
class Writing {
 public:
  static constexpr bool kReads = false;
  std::uint64_t number(std::uint64_t value, std::uint64_t, const char*) {
    return out_.number(value), value;
  }
  std::int64_t signed_number(std::int64_t value, const char*) {
    return out_.signed_number(value), value;
  }
  std::size_t count(std::size_t n, std::size_t, const char*) { return out_.number(n), n; }
  void require(bool, const char*, Index) {}
  bool ok() const { return true; }
  ByteWriter& bytes() { return out_; }

 private:
  ByteWriter out_;
};

/// Replaces each value that it is given by the next of untrusted bytes; 0 after an error.
class Reading {
 public:
  static constexpr bool kReads = true;
  explicit Reading(std::span<const std::byte> bytes) : in_(bytes, "program") {}
  std::uint64_t number(std::uint64_t, std::uint64_t most, const char* name) {
    return in_.number(most, name);
  }
  std::int64_t signed_number(std::int64_t, const char* name) {
    return in_.signed_number(INT64_MIN, INT64_MAX, name);
  }
  std::size_t count(std::size_t, std::size_t entry_bytes, const char* name) {
    return in_.count(entry_bytes, name);
  }
  void require(bool holds, const char* name, Index value) {
    if (!holds) in_.fail(fmt::format("{} is {}, which is out of range", name, value));
  }
  bool ok() const { return in_.ok(); }
  ByteReader& bytes() { return in_; }

 private:
  ByteReader in_;
};

/// Writes the program, or reads it into an empty one.
template <class Io>
class ProgramCoder {
 public:
  ProgramCoder(Io& io, Program& program) : io_(io), p_(program) {}
  void code();

 private:
  using Flags = std::uint64_t;

  template <class T>
  void number(T& field, std::uint64_t most, const char* name) {
    field = static_cast<T>(io_.number(static_cast<std::uint64_t>(field), most, name));
  }
  void flag(bool& field, const char* name) { number(field, 1, name); }
  void bytes(Index& field, const char* name) {
    number(field, static_cast<std::uint64_t>(kMaxBytes), name);
  }
  /// A number that is close to another one, within limits.
  void near(Index& field, Index other, Index least, Index most, const char* name) {
    field = plus(other, io_.signed_number(minus(field, other), name));
    io_.require(field >= least && field <= most, name, field);
    if (!io_.ok()) field = 0;
  }
  template <class Id>
  void id(Id& field, Id other, Index least, Index most, const char* name) {
    Index value = static_cast<Index>(field.value());
    near(value, static_cast<Index>(other.value()), least, most, name);
    field = Id(static_cast<typename Id::rep>(value));
  }
  void rank(Rank& field, Rank other) { id(field, other, -1, kMaxProgramRank, "a rank"); }
  void buffer(BufferId& field, BufferId other) {
    id(field, other, 0, static_cast<Index>(p_.buffers.size()) - 1, "a buffer");
  }
  /// The field of `at` for that buffer.
  Index& of(std::vector<Index>& at, BufferId b) {
    if (at.size() <= b.index()) at.resize(p_.buffers.size() + 1);
    return at[b.index()];
  }
  /// An offset that is close to `expected`.
  void offset(Index& field, Index expected) { near(field, expected, 0, kMaxBytes, "an offset"); }
  void place(Place& field, Place& before) {
    buffer(field.buffer, before.buffer);
    offset(field.offset, before.offset);
    before = field;
  }
  template <class T, class F>
  void table(std::vector<T>& rows, std::size_t least_bytes, const char* name, F&& one);
  template <class T>
  void range(T& of, Flags is_elsewhere, std::uint32_t& expected, std::size_t table);

  void code_header();
  void code_one(ProgramBuffer& b);
  void code_one(ProgramPiece& piece);
  void code_shape(StridedCopy& copy);
  void code_one(ProgramRange& range);
  void code_one(ProgramMatrix& m);
  void code_form(ProgramMatrix& m);
  void code_one(ProgramMaximum& m);
  void code_one(ProgramOp& op);
  std::size_t table_of(ProgramOp::Kind kind) const;
  void code_one(ProgramMessage& m);
  void code_one(ProgramStep& step);
  void code_waits(std::size_t step);

  Io& io_;
  Program& p_;
  ProgramBuffer buffer_;
  ProgramPiece piece_;
  std::vector<Index> src_, dst_, message_;  ///< by buffer: where the last of them ended.
  ProgramMatrix matrix_;
  Place range_, from_, to_;
  Rank peer_;
  std::map<std::pair<Rank, bool>, std::uint64_t> next_id_;
  BufferId message_buffer_;
  std::uint32_t pieces_ = 0, ranges_ = 0, matrices_ = 0, maxima_ = 0;  ///< where ops are.
  std::uint32_t ops_ = 0, messages_ = 0;                               ///< where steps are.
};

template <class Io>
template <class T, class F>
void ProgramCoder<Io>::table(std::vector<T>& rows, std::size_t least_bytes, const char* name,
                             F&& one) {
  const std::size_t n = io_.count(rows.size(), least_bytes, name);
  for (std::size_t i = 0; i < n && io_.ok(); ++i) {
    if constexpr (Io::kReads) rows.emplace_back();
    one(rows[i]);
  }
}

template <class Io>
void ProgramCoder<Io>::code() {
  code_header();
  const auto one = [this](auto& entry) { this->code_one(entry); };
  table(p_.buffers, 4, "the number of buffers", one);
  table(p_.pieces, 3, "the number of pieces", one);
  table(p_.ranges, 3, "the number of ranges", one);
  table(p_.matrices, 14, "the number of matrices", one);
  table(p_.maxima, 5, "the number of maxima", one);
  table(p_.ops, 2, "the number of ops", one);
  table(p_.messages, 6, "the number of messages", one);
  if constexpr (Io::kReads) p_.first_wait.push_back(0);
  std::size_t step = 0;
  table(p_.steps, 4, "the number of steps", [&](ProgramStep& entry) {
    code_one(entry);
    code_waits(step++);
  });
}

template <class Io>
void ProgramCoder<Io>::code_header() {
  rank(p_.rank, Rank(0));
  number(p_.plan_digest, kAny, "the digest of the plan");
  bytes(p_.staging_bytes, "the staging's size");
  bytes(p_.scratch_bytes, "the scratch's size");
  bytes(p_.copies, "the number of copies");
}

template <class Io>
void ProgramCoder<Io>::code_one(ProgramBuffer& b) {
  Flags flags = static_cast<Flags>(b.kind) << 1 | static_cast<Flags>(b.mapped);
  number(flags, Flags(ProgramBuffer::Kind::target) << 1 | 1, "the kind of a buffer");
  b.kind = static_cast<ProgramBuffer::Kind>(flags >> 1);
  b.mapped = (flags & 1) != 0;
  rank(b.rank, buffer_.rank);
  id(b.slot, buffer_.slot, 0, INT32_MAX, "a local tensor");
  bytes(b.bytes, "a buffer's size");
  buffer_ = b;
}

/// The offset at which a copy's loops end on one side: where the next copy is expected to begin.
Index end_of(const StridedCopy& c, Index offset, Index run, Index StridedCopy::Loop::* stride) {
  for (int i = 0; i < c.num_loops; ++i) {
    const auto& loop = c.loops[static_cast<std::size_t>(i)];
    offset = plus(offset, times(minus(loop.count, 1), loop.*stride));
  }
  return plus(offset, run);
}

bool same_shape(const StridedCopy& a, const StridedCopy& b) {
  return a.run_bytes == b.run_bytes && a.num_loops == b.num_loops && a.loops == b.loops &&
         a.src_width == b.src_width && a.dst_width == b.dst_width;
}

template <class Io>
void ProgramCoder<Io>::code_one(ProgramPiece& piece) {
  if constexpr (Io::kReads) piece = piece_;
  Flags flags = Flags{piece.src != piece_.src} | Flags{piece.dst != piece_.dst} << 1 |
                Flags{piece.conversion != piece_.conversion} << 2 |
                Flags{!same_shape(piece.copy, piece_.copy)} << 3;
  number(flags, 15, "a piece's flags");
  if (flags & 1) buffer(piece.src, piece_.src);
  if (flags & 2) buffer(piece.dst, piece_.dst);
  if (flags & 4)
    for (StoredForm* form : {&piece.conversion.from, &piece.conversion.to}) {
      number(form->dtype, Flags(kLastDType), "a dtype");
      number(form->map, Flags(ValueMap::minus_one), "a value map");
    }
  if (flags & 8) code_shape(piece.copy);
  StridedCopy& copy = piece.copy;
  io_.require(piece.src.index() < p_.buffers.size() && piece.dst.index() < p_.buffers.size(),
              "a piece's buffer", piece.src.value());
  if (!io_.ok()) return;
  Index &src = of(src_, piece.src), &dst = of(dst_, piece.dst);
  offset(copy.src_offset, src);
  offset(copy.dst_offset, dst);
  const Index src_run =
      copy.src_width == copy.dst_width ? copy.run_bytes : copy.run_bytes / copy.dst_width;
  src = end_of(copy, copy.src_offset,
               copy.src_width == copy.dst_width ? src_run : times(src_run, copy.src_width),
               &StridedCopy::Loop::src_stride);
  dst = end_of(copy, copy.dst_offset, copy.run_bytes, &StridedCopy::Loop::dst_stride);
  piece_ = piece;
}

template <class Io>
void ProgramCoder<Io>::code_shape(StridedCopy& copy) {
  bytes(copy.run_bytes, "the size of a run");
  Flags flags =
      static_cast<Flags>(copy.num_loops) << 1 | Flags{copy.src_width != 1 || copy.dst_width != 1};
  number(flags, Flags{kMaxDims} << 1 | 1, "the number of loops");
  copy.num_loops = static_cast<int>(flags >> 1);
  for (std::size_t i = 0; i < copy.loops.size(); ++i) {
    StridedCopy::Loop& loop = copy.loops[i];
    if (i >= static_cast<std::size_t>(copy.num_loops)) {
      loop = {};
      continue;
    }
    bytes(loop.count, "the count of a loop");
    near(loop.src_stride, copy.run_bytes, -kMaxBytes, kMaxBytes, "a stride");
    near(loop.dst_stride, copy.run_bytes, -kMaxBytes, kMaxBytes, "a stride");
  }
  Index total = copy.run_bytes;
  for (int i = 0; i < copy.num_loops && io_.ok(); ++i) {
    const Index count = copy.loops[static_cast<std::size_t>(i)].count;
    const bool fits = !__builtin_mul_overflow(total, count, &total) && total <= kMaxBytes;
    io_.require(fits, "the count of a loop", count);
  }
  if constexpr (Io::kReads) copy.src_width = copy.dst_width = 1;
  if ((flags & 1) == 0) return;
  number(copy.src_width, 8, "the width of an element");
  number(copy.dst_width, 8, "the width of an element");
  io_.require(copy.src_width > 0 && copy.dst_width > 0, "the width of an element", 0);
  if (!io_.ok()) copy.src_width = copy.dst_width = 1;
}

template <class Io>
void ProgramCoder<Io>::code_one(ProgramRange& range) {
  place(range.at, range_);
  bytes(range.bytes, "the size of a range");
  range_.offset = plus(range_.offset, range.bytes);
}

/// True if the fields that all matrices of one local tensor share are equal.
bool same_form(const ProgramMatrix& a, const ProgramMatrix& b) {
  return a.format == b.format && a.values_dtype == b.values_dtype && a.rows == b.rows &&
         a.cols == b.cols && a.values_row == b.values_row && a.data_row == b.data_row &&
         a.scales_row == b.scales_row;
}

template <class Io>
void ProgramCoder<Io>::code_form(ProgramMatrix& m) {
  QuantFormat& f = m.format;
  number(f.data, Flags(kLastDType), "a dtype");
  number(f.scale, Flags(kLastDType), "a dtype");
  number(f.block_rows, INT32_MAX, "the rows of a block");
  number(f.block_cols, INT32_MAX, "the columns of a block");
  number(f.rule, Flags(ScaleRule::floor), "a rule of scales");
  number(f.order, Flags(ScaleOrder::swizzled), "an order of scales");
  number(f.zero_block, 255, "the scale of zeros");
  flag(f.tensor_factor, "a format's flag");
  flag(f.factor_divides, "a format's flag");
  number(m.values_dtype, Flags(kLastDType), "a dtype");
  for (Index* field : {&m.rows, &m.cols}) bytes(*field, "the size of a matrix");
  for (Index* field : {&m.values_row, &m.data_row, &m.scales_row})
    near(*field, 0, -kMaxBytes, kMaxBytes, "a stride");
}

template <class Io>
void ProgramCoder<Io>::code_one(ProgramMatrix& m) {
  const Index expected = matrix_.end;
  if constexpr (Io::kReads) m = matrix_;
  bool has_form = !same_form(m, matrix_);
  flag(has_form, "a matrix' flag");
  if (has_form) code_form(m);
  near(m.begin, expected, 0, kMaxBytes, "the first row");
  near(m.end, m.begin, 0, kMaxBytes, "the last row");
  for (Place ProgramMatrix::* at :
       {&ProgramMatrix::values, &ProgramMatrix::data, &ProgramMatrix::scales,
        &ProgramMatrix::factor, &ProgramMatrix::amax})
    place(m.*at, matrix_.*at);
  near(m.unit, plus(matrix_.unit, 1), -1, kMaxBytes, "the number of some rows");
  matrix_ = m;
}

template <class Io>
void ProgramCoder<Io>::code_one(ProgramMaximum& m) {
  place(m.from, from_);
  bytes(m.count, "the number of values");
  place(m.to, to_);
}

/// Entries [first, end) of a table, mostly where the last ones ended.
template <class Io>
template <class T>
void ProgramCoder<Io>::range(T& of, Flags is_elsewhere, std::uint32_t& expected,
                             std::size_t table) {
  Flags size = Flags{of.end} - Flags{of.first};
  if constexpr (Io::kReads) of.first = expected;
  if (is_elsewhere) number(of.first, table, "the first entry of a step");
  number(size, table - std::min<std::size_t>(table, of.first), "the number of a step's entries");
  of.end = expected = static_cast<std::uint32_t>(of.first + size);
}

template <class Io>
std::size_t ProgramCoder<Io>::table_of(ProgramOp::Kind kind) const {
  switch (kind) {
    case ProgramOp::Kind::clear: return p_.ranges.size();
    case ProgramOp::Kind::max: return p_.maxima.size();
    case ProgramOp::Kind::amax:
    case ProgramOp::Kind::quantise:
    case ProgramOp::Kind::dequantise: return p_.matrices.size();
    default: return p_.pieces.size();
  }
}

template <class Io>
void ProgramCoder<Io>::code_one(ProgramOp& op) {
  const auto expected = [&]() -> std::uint32_t& {
    switch (op.kind) {
      case ProgramOp::Kind::clear: return ranges_;
      case ProgramOp::Kind::max: return maxima_;
      case ProgramOp::Kind::amax:
      case ProgramOp::Kind::quantise:
      case ProgramOp::Kind::dequantise: return matrices_;
      default: return pieces_;
    }
  };
  Flags flags =
      static_cast<Flags>(op.kind) << 2 | Flags{op.streams} << 1 | Flags{op.first != expected()};
  number(flags, Flags(ProgramOp::Kind::dequantise) << 2 | 3, "the kind of an op");
  op.kind = static_cast<ProgramOp::Kind>(flags >> 2);
  op.streams = (flags & 2) != 0;
  range(op, flags & 1, expected(), table_of(op.kind));
}

template <class Io>
void ProgramCoder<Io>::code_one(ProgramMessage& m) {
  flag(m.is_send, "the direction of a message");
  rank(m.peer, peer_);
  peer_ = m.peer;
  std::uint64_t& next = next_id_[{m.peer, m.is_send}];
  m.id = next + static_cast<std::uint64_t>(
                    io_.signed_number(static_cast<std::int64_t>(m.id - next), "a message's id"));
  next = m.id + 1;
  buffer(m.at.buffer, message_buffer_);
  message_buffer_ = m.at.buffer;
  if (!io_.ok()) return;
  Index& at = of(message_, m.at.buffer);
  offset(m.at.offset, at);
  bytes(m.bytes, "the size of a message");
  at = plus(m.at.offset, m.bytes);
}

template <class Io>
void ProgramCoder<Io>::code_one(ProgramStep& step) {
  // Barriers have no entries.
  const bool is_exchange = step.kind == ProgramStep::Kind::exchange;
  const bool is_empty = step.first == 0 && step.end == 0;
  const auto elsewhere = [&](bool exchange) { return step.first != (exchange ? messages_ : ops_); };
  Flags flags = static_cast<Flags>(step.kind) << 2 | Flags{is_empty} << 1 |
                Flags{!is_empty && elsewhere(is_exchange)};
  number(flags, Flags(ProgramStep::Kind::barrier) << 2 | 3, "the kind of a step");
  step.kind = static_cast<ProgramStep::Kind>(flags >> 2);
  const bool exchanges = step.kind == ProgramStep::Kind::exchange;
  if ((flags & 2) == 0)
    range(step, flags & 1, exchanges ? messages_ : ops_,
          exchanges ? p_.messages.size() : p_.ops.size());
  bytes(step.bytes, "the bytes of a step");
  bytes(step.delivered, "the delivered bytes of a step");
}

template <class Io>
void ProgramCoder<Io>::code_waits(std::size_t step) {
  std::size_t n = 0;
  if constexpr (!Io::kReads) n = p_.first_wait[step + 1] - p_.first_wait[step];
  n = io_.count(n, 1, "the number of a step's waits");
  auto before = static_cast<Index>(step);
  for (std::size_t i = 0; i < n && io_.ok(); ++i) {
    if constexpr (Io::kReads) p_.waits.emplace_back();
    StepId& wait = Io::kReads ? p_.waits.back() : p_.waits[p_.first_wait[step] + i];
    Index value = wait.value();
    near(value, before, 0, static_cast<Index>(step) - 1, "a step that is waited for");
    wait = StepId(static_cast<std::uint32_t>(value));
    before = value;
  }
  if constexpr (Io::kReads) p_.first_wait.push_back(static_cast<std::uint32_t>(p_.waits.size()));
}

}  // namespace

std::vector<std::byte> serialise(const Program& program) {
  Program copy = program;
  Writing io;
  io.bytes().raw(kMagic);
  io.bytes().number(kProgramVersion);
  ProgramCoder<Writing>(io, copy).code();
  return std::move(io.bytes()).finish();
}

Result<Program> parse_program(std::span<const std::byte> bytes) {
  if (bytes.size() > UINT32_MAX)
    return fail(Code::corrupt, fmt::format("program: {} bytes, at most 4 GiB", bytes.size()));
  Reading io(bytes);
  if (io.bytes().raw(kMagic.size(), "the magic") != kMagic)
    return fail(Code::corrupt, "program: byte 0: is not a serialised program");
  const std::uint64_t version = io.bytes().number(kAny, "the version");
  if (io.ok() && version != kProgramVersion)
    return fail(Code::unsupported, fmt::format("program: byte {}: version {}, this build reads {}",
                                               kMagic.size(), version, kProgramVersion));
  Program program;
  ProgramCoder<Reading>(io, program).code();
  RESHARD_TRY(io.bytes().finish());
  // Its sizes are safe to calculate with from here on.
  if (auto checked = check_structure(program); !checked)
    return tl::unexpected(std::move(checked).error().in("program"));
  // A program has one form, so that its digest is also that of the bytes.
  const std::vector<std::byte> again = serialise(program);
  const auto [theirs, ours] = std::ranges::mismatch(bytes, again);
  if (theirs != bytes.end() || ours != again.end())
    return fail(Code::corrupt,
                fmt::format("program: byte {}: not in the shortest form", theirs - bytes.begin()));
  return program;
}

std::uint64_t digest_of_serialised(std::span<const std::byte> bytes) {
  return hash64({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

std::uint64_t digest(const Program& program) { return digest_of_serialised(serialise(program)); }

}  // namespace reshard
