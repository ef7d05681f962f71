// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "reshard/megatron/tensor_view.h"

namespace reshard::megatron {

/// Number of elements along the last dimension that share a scale (OCP Microscaling v1.0, section
/// 5.2).
inline constexpr Index kMxfp8Block = 32;

/// A matrix as MXFP8: E4M3 data, one E8M0 scale per block of 32 along a row.
struct MXFP8Tensor {
  TensorView data;   ///< f8_e4m3 [M, K], K a multiple of 32.
  TensorView scale;  ///< f8_e8m0 [M, K / 32]; or 1-D, in tiles of 128 x 4 scales.
  std::shared_ptr<const OwnedTensor> data_owner = nullptr, scale_owner = nullptr;

  Index rows() const { return data.shape[0]; }
  Index cols() const { return data.shape[1]; }
  bool swizzled() const { return scale.shape.size() == 1; }
};

/// A tensor of zeros that owns its memory. Errors: not a matrix; K is not a multiple of 32.
Result<std::shared_ptr<MXFP8Tensor>> make_mxfp8(const Dims& shape, bool swizzled);

/// Errors: shapes or dtypes other than above; memory with gaps.
Result<> check_mxfp8(const MXFP8Tensor& tensor);

/// Quantises bf16, f16 or f32 values [M', K'] into elements [row, row + M') x [col, col + K') of
/// the tensor. A scale is the block's amax / 448, rounded up to a power of two. Allocates only if
/// scales are in tile order and the part is not the whole tensor. Errors: another dtype; the part
/// is not inside the tensor or cuts a block.
Result<> quantise_part(const TensorView& values, Index row, Index col, const MXFP8Tensor& into);

/// Writes scales [M', K' / 32] of such a part into the tensor, in its order.
Result<> put_scales(const TensorView& scales, Index row, Index col, const MXFP8Tensor& into);

/// A new tensor with these values, quantised. Errors: as above.
Result<std::shared_ptr<MXFP8Tensor>> from_bf16(const TensorView& values, bool swizzled);

/// The values, as bf16 [M, K].
Result<OwnedTensor> dequantised(const MXFP8Tensor& tensor);

}  // namespace reshard::megatron
