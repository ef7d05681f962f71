// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reshard/transform/quantise.h"

namespace reshard {

/// As amax(), quantise() and dequantise_rows() of all rows (transform/quantise.h), with the same
/// results, by up to `threads` threads: 0 means one per core that this process may use. Each has at
/// least a MiB of values, so small matrices start no thread. Blocks of whole columns (block_rows 0)
/// are quantised by one thread, unless the matrix is a single block.
float amax_in_threads(const FloatMatrix& matrix, int threads);
void quantise_in_threads(const FloatMatrix& src, const QuantMatrix& dst, int threads);
void dequantise_in_threads(const QuantMatrix& src, const FloatMatrix& dst, int threads);

}  // namespace reshard
