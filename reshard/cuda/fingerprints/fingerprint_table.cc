// SPDX-License-Identifier: Apache-2.0
#include "reshard/cuda/fingerprints/fingerprint_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "reshard/cuda/tiles/alignment.h"

namespace reshard::cuda {
namespace {

/// A piece has less than 2^31 rows, which Divisor needs.
constexpr Index kMaxRows = (Index{1} << 31) - 1;
constexpr auto kPart = static_cast<Index>(kPartBytes);

/// A loop over rows. Bytes of memory, and parts.
struct RowLoop {
  Index count = 0, stride = 0, parts = 0;
};

/// The largest stride first, so that threads read in the order of memory; without loops of one
/// iteration; with two loops that advance as one merged.
void order(std::vector<RowLoop>& loops) {
  std::erase_if(loops, [](const RowLoop& loop) { return loop.count == 1; });
  const auto stride = [](const RowLoop& loop) {
    return loop.stride < 0 ? -loop.stride : loop.stride;
  };
  std::ranges::stable_sort(loops, std::ranges::greater(), stride);
  for (std::size_t i = 1; i < loops.size();) {
    RowLoop &outer = loops[i - 1], &inner = loops[i];
    if (outer.stride == inner.count * inner.stride && outer.parts == inner.count * inner.parts) {
      inner.count *= outer.count;
      loops.erase(loops.begin() + static_cast<std::ptrdiff_t>(i) - 1);
    } else {
      ++i;
    }
  }
}

/// The number of rows of the box in the tensor's matrix.
Index num_rows(const Box& box) {
  Index n = 1;
  for (int d = 0; d + 1 < box.rank(); ++d) n *= box[d].size();
  return n;
}

/// The longest dimension but the last one.
int longest_leading(const Box& box) {
  int longest = 0;
  for (int d = 1; d + 1 < box.rank(); ++d)
    if (box[d].size() > box[longest].size()) longest = d;
  return longest;
}

/// Elements [begin, end) of dimension d.
FingerprintedBox part_of(const FingerprintedBox& whole, int d, Interval part) {
  FingerprintedBox out = whole;
  out.box = whole.box.with(d, part);
  out.where.offset += (part.begin() - whole.box[d].begin()) * whole.where.strides[d];
  return out;
}

}  // namespace

/// Columns [begin, begin + bytes) of some rows.
struct FingerprintTable::Rows {
  const FingerprintKey* key;
  Conversion conversion;
  Index sum;
  const std::byte* src;  ///< of the first column of the first row.
  Index part;            ///< of that row's first part, plus begin / 16384 once columns are cut.
  Index begin, bytes;    ///< of the fingerprinted form: of the whole row, or of a part.
  Index element_bytes;   ///< of an element in memory; 1 if elements are less.
  Index column_stride;   ///< between elements. Bytes of memory.
  std::vector<RowLoop> loops;

  Index count() const {
    Index n = 1;
    for (const RowLoop& loop : loops) n *= loop.count;
    return n;
  }
  /// The bytes of an element in the fingerprinted form.
  Index form_bytes() const {
    return conversion.converts() ? size_of(conversion.to.dtype, 1) : element_bytes;
  }
  /// Cuts between values that are converted, and anywhere in others.
  Index src_bytes(Index of_form) const {
    return conversion.converts() ? of_form / form_bytes() * element_bytes : of_form;
  }
  /// True if all elements are aligned to their size.
  bool is_aligned(bool one_column) const {
    Alignment all;
    all.require(src);
    if (!one_column) all.require(column_stride);
    for (const RowLoop& loop : loops)
      if (loop.count > 1) all.require(loop.stride);
    return all.bytes() >= element_bytes;
  }
  /// Bytes [first, end) of the columns, which are contiguous in memory.
  Rows columns(Index first, Index end) const {
    Rows out = *this;
    out.src += src_bytes(first - begin);
    out.begin = first;
    out.bytes = end - first;
    return out;
  }
};

std::span<const WordWeights> word_weights() {
  static const std::vector<WordWeights> table = [] {
    std::vector<WordWeights> out(kNumWeights);
    for (std::size_t w = 0; w < kPartWords; ++w)
      for (std::size_t l = 0; l < 2; ++l) out[w].lane[l] = word_weight(l, w);
    return out;
  }();
  return table;
}

FingerprintTable::Rows FingerprintTable::rows_of(const FingerprintedBox& what, Index sum) {
  const ByteMatrix& matrix = what.key->matrix();
  const int bits = what.conversion.converts() ? reshard::bits(what.conversion.from.dtype)
                                              : matrix.bits,
            last = what.box.rank() - 1;
  Rows out{what.key, what.conversion,
           sum,      what.data + what.where.offset * bits / 8,
           0,        0,
           0,        std::max(bits / 8, 1),
           0,        {}};
  const Interval columns = last < 0 ? Interval{0, 1} : what.box[last];
  out.begin = columns.begin() * matrix.bits / 8;
  out.bytes = columns.size() * matrix.bits / 8;
  out.column_stride = (last < 0 ? 1 : what.where.strides[last]) * bits / 8;
  Index parts = what.key->parts();
  for (int d = last - 1; d >= 0; --d) {
    out.part += what.box[d].begin() * parts;
    out.loops.push_back({what.box[d].size(), what.where.strides[d] * bits / 8, parts});
    parts *= matrix.shape[d];
  }
  return out;
}

Result<> FingerprintTable::add(const FingerprintedBox& what, Index sum) {
  num_sums_ = std::max(num_sums_, sum + 1);
  const Box& box = what.box;
  if (box.empty()) return {};
  RESHARD_TRY(check_whole_bytes(what.key->matrix(), box, what.where));
  if (num_rows(box) > kMaxRows / (what.key->parts() + 1)) {
    const int d = longest_leading(box);
    const Index middle = box[d].begin() + box[d].size() / 2;
    RESHARD_TRY(add(part_of(what, d, {box[d].begin(), middle}), sum));
    return add(part_of(what, d, {middle, box[d].end()}), sum);
  }
  Rows rows = rows_of(what, sum);
  const bool one_column = rows.bytes == rows.form_bytes();
  if (what.conversion.converts() && !rows.is_aligned(one_column))
    return fail(Code::unsupported,
                fmt::format("{} values to convert to {} are not aligned to their size",
                            to_string(what.conversion.from), to_string(what.conversion.to)));
  bytes_ += num_rows(box) * rows.src_bytes(rows.bytes);
  if (one_column || what.where.strides[box.rank() - 1] == 1) {
    add_columns(std::move(rows));
  } else {
    add_across(std::move(rows));
  }
  return {};
}

/// Cuts contiguous columns at the ends of parts; whole parts are rows of their own.
void FingerprintTable::add_columns(Rows rows) {
  const Index end = rows.begin + rows.bytes;
  const auto add = [&](Index first, Index last, Index times) {
    if (first >= last) return;
    Rows some = rows.columns(first, last);
    some.part += first / kPart;
    some.begin = first % kPart;
    if (times > 1) some.loops.push_back({times, rows.src_bytes(kPart), 1});
    order(some.loops);
    add_aligned(some);
  };
  const Index whole = (rows.begin + kPart - 1) / kPart * kPart, rest = end / kPart * kPart;
  if (whole > rest) return add(rows.begin, end, 1);  // Inside one part.
  add(rows.begin, whole, 1);
  if (whole < rest) add(whole, whole + kPart, (rest - whole) / kPart);
  add(rest, end, 1);
}

/// Chooses the width of accesses. Cuts columns of which only the ends are aligned badly.
void FingerprintTable::add_aligned(const Rows& rows) {
  Alignment strides;
  for (const RowLoop& loop : rows.loops) strides.require(loop.stride);
  Alignment all = strides;
  all.require(rows.src);
  if (rows.conversion.converts()) {
    // Four values are read at once, and are whole words at a whole word's place.
    const bool four = all.bytes() >= 4 * rows.element_bytes && rows.begin % 4 == 0 &&
                      rows.bytes % (4 * rows.form_bytes()) == 0 &&
                      rows.conversion.from.map == rows.conversion.to.map;
    return add_along(rows, four ? ReadBy::values4 : ReadBy::value,
                     (four ? 4 : 1) * rows.element_bytes);
  }
  all.require(rows.bytes);
  // Whole words of a vector are whole words of the part.
  if (rows.begin % 4 != 0) all.require(rows.begin % 4);
  const auto place =
      static_cast<Index>(reinterpret_cast<std::uintptr_t>(rows.src) % Alignment::kWidest);
  constexpr Index kWorthCutting = 16 * Alignment::kWidest;
  if (all.bytes() == Alignment::kWidest || strides.bytes() != Alignment::kWidest ||
      (rows.begin - place) % 4 != 0 || rows.bytes < kWorthCutting)
    return add_along(rows, static_cast<ReadBy>(all.log2()), all.bytes());
  const Index head = (Alignment::kWidest - place) % Alignment::kWidest,
              tail = (rows.bytes - head) % Alignment::kWidest, end = rows.begin + rows.bytes;
  for (const auto& [first, last] :
       {std::pair(rows.begin, rows.begin + head), std::pair(rows.begin + head, end - tail),
        std::pair(end - tail, end)})
    if (first < last) add_aligned(rows.columns(first, last));
}

void FingerprintTable::add_along(const Rows& rows, ReadBy read_by, Index src_bytes) {
  FingerprintPiece piece;
  piece.read_by = read_by;
  piece.columns = divisor(static_cast<std::uint32_t>(rows.src_bytes(rows.bytes) / src_bytes));
  add_piece(piece, rows);
}

/// Cuts columns that are not contiguous at the ends of parts, and so that a block of them is about
/// a tile; and rows, if four that are adjacent in memory can be read at once, but some are left.
void FingerprintTable::add_across(Rows rows) {
  order(rows.loops);
  const Index element = rows.form_bytes(), end = rows.begin + rows.bytes;
  Alignment all;
  all.require(rows.src);
  all.require(rows.column_stride);
  for (std::size_t i = 0; i + 1 < rows.loops.size(); ++i) all.require(rows.loops[i].stride);
  const bool adjacent = !rows.conversion.converts() && rows.element_bytes <= 4 &&
                        !rows.loops.empty() && rows.loops.back().stride == rows.element_bytes &&
                        all.bytes() >= kRowsAtOnce * rows.element_bytes;
  const Index rest = adjacent ? rows.loops.back().count % Index{kRowsAtOnce} : 0;
  for (Index first = rows.begin; first < end;) {
    const Index part_end = (first / kPart + 1) * kPart;
    const Index last = std::min({end, part_end, first + Index{kPieceColumns} * element});
    Rows some = rows;
    some.src += (first - rows.begin) / element * rows.column_stride;
    some.part += first / kPart;
    some.begin = first % kPart;
    some.bytes = last - first;
    first = last;
    if (!adjacent) {
      add_block(some, false);
      continue;
    }
    RowLoop& inner = some.loops.back();
    inner.count -= rest;
    if (inner.count > 0) add_block(some, true);
    if (rest == 0) continue;
    some.src += inner.count * inner.stride;
    some.part += inner.count * inner.parts;
    inner.count = rest;
    add_block(some, false);
  }
}

void FingerprintTable::add_block(const Rows& rows, bool four_rows) {
  FingerprintPiece piece;
  piece.read_by = four_rows ? ReadBy::elements4 : ReadBy::element;
  piece.columns = divisor(static_cast<std::uint32_t>(rows.bytes / rows.form_bytes()));
  piece.column_stride = rows.column_stride;
  piece.element_bytes = static_cast<std::uint8_t>(rows.element_bytes);
  Alignment all;
  all.require(rows.src);
  all.require(rows.element_bytes);
  all.require(rows.column_stride);
  for (const RowLoop& loop : rows.loops) all.require(loop.stride);
  piece.log2_alignment = static_cast<std::uint8_t>(all.log2());
  add_piece(piece, rows);
}

void FingerprintTable::add_piece(FingerprintPiece piece, const Rows& rows) {
  const auto begin = static_cast<std::size_t>(rows.begin);
  const auto ones = fingerprint_ones(begin, begin + static_cast<std::size_t>(rows.bytes));
  for (std::size_t l = 0; l < 2; ++l) {
    piece.key[l] = rows.key->lane_key(l);
    piece.ones[l] = ones[l];
  }
  piece.src = rows.src;
  piece.part = static_cast<std::uint64_t>(rows.part);
  piece.begin = static_cast<std::uint32_t>(rows.begin);
  piece.sum = static_cast<std::uint32_t>(rows.sum);
  piece.conversion = rows.conversion;
  piece.first_loop = static_cast<std::uint32_t>(loops_.size());
  piece.num_loops = static_cast<std::uint8_t>(rows.loops.size());
  for (const RowLoop& loop : rows.loops)
    loops_.push_back({divisor(static_cast<std::uint32_t>(loop.count)), loop.stride, loop.parts});
  pieces_.push_back(piece);
  add_slices(rows.count(), rows.src_bytes(rows.bytes));
}

/// Small pieces share a tile; large ones are cut, at multiples of rows that are read at once.
void FingerprintTable::add_slices(Index rows, Index row_bytes) {
  const auto piece = static_cast<std::uint32_t>(pieces_.size() - 1);
  constexpr Index kAtOnce = kRowsAtOnce;
  const Index most =
      std::clamp<Index>(kTileBytes / row_bytes / kAtOnce * kAtOnce, kAtOnce, kSliceRows);
  for (Index first = 0; first < rows; first += most) {
    const Index count = std::min(most, rows - first);
    slices_.push_back(
        {piece, static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(count)});
    filled_ += count * row_bytes;
    if (filled_ >= kTileBytes * 3 / 4) end_tile();
  }
}

void FingerprintTable::end_tile() {
  const std::uint32_t first = tiles_.empty() ? 0 : tiles_.back().end;
  const auto end = static_cast<std::uint32_t>(slices_.size());
  if (first < end) tiles_.push_back({first, end});
  filled_ = 0;
}

}  // namespace reshard::cuda
