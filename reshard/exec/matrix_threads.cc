// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/matrix_threads.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "reshard/memory/worker_pool.h"

namespace reshard {
namespace {

/// A thread costs as much as the conversion of some 100 KB to start.
constexpr Index kLeastBytes = Index{1} << 20;

/// The number of threads that share the rows of a matrix, each from a multiple of `unit` rows on.
int num_parts(const FloatMatrix& matrix, Index unit, int threads) {
  const Index bytes = matrix.rows * matrix.cols * bits(matrix.dtype) / 8;
  const Index most = std::min(bytes / kLeastBytes, (matrix.rows + unit - 1) / unit);
  return static_cast<int>(
      std::clamp<Index>(threads > 0 ? threads : usable_cores(), 1, std::max<Index>(most, 1)));
}

/// Calls body(part, begin, end) for `parts` ranges of rows that begin at multiples of `unit`, each
/// on a thread of its own.
template <class Body>
void for_rows(Index rows, Index unit, int parts, Body&& body) {
  if (parts == 1) return body(0, Index{0}, rows);
  const Index units = (rows + unit - 1) / unit;
  const auto border = [&](Index part) { return std::min(units * part / parts * unit, rows); };
  auto run = [&](int part) { body(part, border(part), border(part + 1)); };
  WorkerPool(parts).run(run);
}

FloatMatrix rows_of(FloatMatrix matrix, Index begin, Index end) {
  if (begin > 0) matrix.data += begin * matrix.row_bytes;
  matrix.rows = end - begin;
  return matrix;
}

}  // namespace

float amax_in_threads(const FloatMatrix& matrix, int threads) {
  const int parts = num_parts(matrix, 1, threads);
  std::vector<float> most(static_cast<std::size_t>(parts));
  for_rows(matrix.rows, 1, parts, [&](int part, Index begin, Index end) {
    most[static_cast<std::size_t>(part)] = amax(rows_of(matrix, begin, end));
  });
  float all = 0;
  for (const float m : most)
    if (std::isnan(m) || m > all) all = m;
  return all;
}

void quantise_in_threads(const FloatMatrix& src, const QuantMatrix& dst, int threads) {
  const QuantFormat& format = dst.format;
  const float most = needs_amax(format) ? amax_in_threads(src, threads) : 0;
  const bool whole = format.block_rows == 0 && !is_one_block(format);
  const Index unit = std::max<Index>(1, whole ? src.rows : format.block_rows);
  for_rows(src.rows, unit, num_parts(src, unit, threads),
           [&](int, Index begin, Index end) { quantise_rows(src, dst, begin, end, most); });
}

void dequantise_in_threads(const QuantMatrix& src, const FloatMatrix& dst, int threads) {
  for_rows(dst.rows, 1, num_parts(dst, 1, threads),
           [&](int, Index begin, Index end) { dequantise_rows(src, dst, begin, end); });
}

}  // namespace reshard
