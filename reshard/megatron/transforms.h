// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "reshard/megatron/module.h"

namespace reshard::megatron {

/// A tensor to send or receive, and the owner of its memory; null if that is the model.
struct WireTensor {
  TensorView view;
  std::shared_ptr<const void> owner = nullptr;
};

/// Transforms tensors between the models and the wire; users may implement it. For each operation
/// with should_transform(), execute_reshard_plan() calls it instead of a plain send or receive.
/// Sender and receiver must return the same number of tensors, with equal sizes.
class ReshardTransform {
 public:
  virtual ~ReshardTransform() = default;
  ReshardTransform() = default;
  ReshardTransform(const ReshardTransform&) = delete;
  ReshardTransform& operator=(const ReshardTransform&) = delete;

  /// True if this parameter is transformed. The name is this rank's own. Default: false.
  virtual bool should_transform(std::string_view param_name) const;

  /// Returns the tensors to send for `src_slice` of the parameter; `dst_slice` is its place in the
  /// receiver's tensor. Default: the plain slice, one tensor.
  virtual Result<std::vector<WireTensor>> prepare_send(std::string_view param_name,
                                                       const Box& src_slice,
                                                       const Tensor& src_param,
                                                       const Box& dst_slice);
  /// Returns the tensors to receive into. Default: `unsupported`.
  virtual Result<std::vector<WireTensor>> prepare_recv(std::string_view param_name,
                                                       const Box& dst_slice);
  /// Writes the received tensors into place. Default: `unsupported`.
  virtual Result<> finalize_recv(std::string_view param_name, const Box& dst_slice,
                                 std::span<const WireTensor> recv_buffers);
  /// Called before the first prepare_...() of a refit, and after its last finalize_recv(). Default:
  /// do nothing. An error fails the refit.
  virtual void begin();
  virtual Result<> finish();
};

/// The slice of scales that belongs to a slice of MXFP8 data: divides the ends of the last
/// dimension by `block_size` (an index is rounded down); open ends and other dimensions do not
/// change. Errors: no dimensions; an end is not a multiple of block_size.
Result<Slice> scale_slice_from_data_slice(const Slice& data_slice, Index block_size = 32);

/// The parameter in a plain dtype: dequantised to bf16 if it is MXFP8, otherwise its own memory.
Result<WireTensor> ensure_sendable(const Tensor& param);

}  // namespace reshard::megatron
