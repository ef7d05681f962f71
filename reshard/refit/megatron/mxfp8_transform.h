// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "reshard/refit/megatron/mxfp8_tensor.h"
#include "reshard/refit/megatron/transforms.h"

namespace reshard::megatron {

/// Receiver's MXFP8 weights by parameter name without the prefix.
using PersistentBuffers = std::map<std::string, std::shared_ptr<MXFP8Tensor>, std::less<>>;

/// Writes what arrives into MXFP8 tensors whose addresses never change, so that CUDA graphs that
/// hold them stay valid.
///
/// Convert on receive: senders send plain values (one tensor) and need no transform. The receiver
/// gathers them, and quantises a slice at once where scales are 2-D, the whole weight once all of
/// it has arrived where they are 1-D.
/// Convert on send: both sides have the transform; data and scales travel, two tensors per
/// operation.
/// A slice that cuts a block of 32 travels as plain values in both modes; the block is quantised
/// when its last element has arrived.
class MXFP8ReshardTransform final : public ReshardTransform {
 public:
  /// @param convertible_params  full names of the parameters that take this way, each rank's own.
  /// @param persistent_buffers  empty on a rank that only sends.
  /// @param buffer_key_prefix   what parameter names have in front of the keys ("decoder.").
  MXFP8ReshardTransform(std::set<std::string, std::less<>> convertible_params,
                        PersistentBuffers persistent_buffers, std::string buffer_key_prefix = "",
                        bool convert_on_send = false);

  bool should_transform(std::string_view param_name) const override;
  Result<std::vector<WireTensor>> prepare_send(std::string_view param_name, const Box& src_slice,
                                               const Tensor& src_param,
                                               const Box& dst_slice) override;
  /// Errors: no buffer of this name, a slice that is not in it.
  Result<std::vector<WireTensor>> prepare_recv(std::string_view param_name,
                                               const Box& dst_slice) override;
  /// Errors: tensors that are not those of prepare_recv(); more elements than the weight has.
  Result<> finalize_recv(std::string_view param_name, const Box& dst_slice,
                         std::span<const WireTensor> recv_buffers) override;
  void begin() override { pending_.clear(); }
  /// Errors: a weight of which some elements have arrived and others have not.
  Result<> finish() override;

  const PersistentBuffers& persistent_buffers() const { return persistent_buffers_; }
  bool convert_on_send() const { return convert_on_send_; }

 private:
  /// A weight that is on its way.
  struct Pending {
    std::shared_ptr<const OwnedTensor> values;  ///< bf16 [M, K], where plain values come.
    Index arrived = 0;                          ///< elements.
    std::vector<std::uint8_t> in_block;         ///< [M, K / 32] elements, where blocks are cut.
  };

  Result<MXFP8Tensor*> buffer_of(std::string_view param_name, const Box& dst_slice);
  bool quantised_on_wire(const Box& dst_slice) const;
  Result<> finalize_values(Pending& pending, const Box& slice, const TensorView& values,
                           const MXFP8Tensor& into);
  Result<> count_blocks(Pending& pending, const Box& slice, const MXFP8Tensor& into);

  std::set<std::string, std::less<>> convertible_params_;
  PersistentBuffers persistent_buffers_;
  std::string buffer_key_prefix_;
  bool convert_on_send_;
  std::map<std::string, Pending, std::less<>> pending_;  ///< by parameter name.
};

}  // namespace reshard::megatron
