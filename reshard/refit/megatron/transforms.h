// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "reshard/refit/megatron/module.h"

namespace reshard::megatron {

/// A tensor on its way, with what owns its memory; null where that is the model's.
struct WireTensor {
  TensorView view;
  std::shared_ptr<const void> owner = nullptr;
};

/// What happens to tensors on their way, for users to implement. execute_reshard_plan() asks it for
/// each operation; where should_transform() is true it takes the place of the plain send, receive
/// and write. Sender and receiver must give equally many tensors, of equal sizes.
class ReshardTransform {
 public:
  virtual ~ReshardTransform() = default;
  ReshardTransform() = default;
  ReshardTransform(const ReshardTransform&) = delete;
  ReshardTransform& operator=(const ReshardTransform&) = delete;

  /// Whether this parameter takes the transform's way; here: none does. The name is this rank's
  /// own.
  virtual bool should_transform(std::string_view param_name) const;

  /// Tensors to send of `src_slice` of the parameter; here: the slice as it is, one tensor.
  /// `dst_slice` is where it goes in the receiver's tensor.
  virtual Result<std::vector<WireTensor>> prepare_send(std::string_view param_name,
                                                       const Box& src_slice,
                                                       const Tensor& src_param,
                                                       const Box& dst_slice);
  /// Room for as many. To be implemented: here `unsupported`.
  virtual Result<std::vector<WireTensor>> prepare_recv(std::string_view param_name,
                                                       const Box& dst_slice);
  /// Writes what came to where it belongs. To be implemented: here `unsupported`.
  virtual Result<> finalize_recv(std::string_view param_name, const Box& dst_slice,
                                 std::span<const WireTensor> recv_buffers);
  /// Called before the first prepare of a refit, and after its last finalize_recv(); here: nothing
  /// to do. An error is the refit's.
  virtual void begin();
  virtual Result<> finish();
};

/// The slice of scales that belongs to a slice of MXFP8 data: the last dimension's ends divided by
/// `block_size`, an index likewise, rounded down; open ends and other dimensions as they are.
/// Errors: no dimensions; an end that is no multiple.
Result<Slice> scale_slice_from_data_slice(const Slice& data_slice, Index block_size = 32);

/// The parameter in a plain dtype: dequantised to bf16 where it is MXFP8, else as it lies in
/// memory.
Result<WireTensor> ensure_sendable(const Tensor& param);

}  // namespace reshard::megatron
