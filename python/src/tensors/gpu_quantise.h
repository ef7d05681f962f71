// SPDX-License-Identifier: Apache-2.0
// Conversions of one matrix in the memory of a GPU.
#pragma once

#include "python/src/tensors/gpus.h"
#include "reshard/cuda/tiles/matrix_table.h"

namespace reshard::python {

/// Does the work for a whole matrix, all in the memory of this stream's GPU, after what the stream
/// has, and waits for it. Throws those of MatrixTable::add(), memory that is short, the driver's.
/// Needs no GIL.
void run_matrix(const cuda::Stream& stream, cuda::MatrixWork work, const FloatMatrix& values,
                const QuantMatrix& stored);

/// amax() of such a matrix.
float amax_on_gpu(const cuda::Stream& stream, const FloatMatrix& values);

}  // namespace reshard::python
