// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "reshard/refit/megatron/tensor_view.h"

namespace reshard::megatron {

/// Elements that share a scale, along the last dimension (OCP Microscaling v1.0, section 5.2).
inline constexpr Index kMxfp8Block = 32;

/// A matrix as MXFP8: E4M3 data, one E8M0 scale per block of 32 along a row.
struct MXFP8Tensor {
  TensorView data;   ///< f8_e4m3 [M, K], K a multiple of 32.
  TensorView scale;  ///< f8_e8m0 [M, K / 32], or 1-D in tile order: of 128 * 4 scales each.
  std::shared_ptr<const OwnedTensor> data_owner = nullptr, scale_owner = nullptr;

  Index rows() const { return data.shape[0]; }
  Index cols() const { return data.shape[1]; }
  bool swizzled() const { return scale.shape.size() == 1; }
};

/// Zeros of this shape, in memory of its own. Errors: no matrix, K no multiple of 32.
Result<std::shared_ptr<MXFP8Tensor>> make_mxfp8(const Dims& shape, bool swizzled);

/// Errors: shapes and dtypes that are not as said above, memory with gaps.
Result<> check_mxfp8(const MXFP8Tensor& tensor);

/// Quantises rows of plain numbers (bf16, f16, f32) into the tensor: elements [row, row + M') x
/// [col, col + K') of it, scales by amax / 448 rounded up to a power of two. Allocates only where
/// scales are in tile order and the part is not the whole. Errors: another dtype, a part that is
/// not inside or cuts a block.
Result<> quantise_part(const TensorView& values, Index row, Index col, const MXFP8Tensor& into);

/// Puts scales that came as rows, of elements as above, where the tensor has them.
Result<> put_scales(const TensorView& scales, Index row, Index col, const MXFP8Tensor& into);

/// A new tensor of these values. Errors: as above.
Result<std::shared_ptr<MXFP8Tensor>> from_bf16(const TensorView& values, bool swizzled);

/// The values as bf16 [M, K].
Result<OwnedTensor> dequantised(const MXFP8Tensor& tensor);

}  // namespace reshard::megatron
