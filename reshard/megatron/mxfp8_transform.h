// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "reshard/megatron/mxfp8_tensor.h"
#include "reshard/megatron/transforms.h"

namespace reshard::megatron {

struct ReshardPlan;

/// The receiver's MXFP8 weights, by parameter name without the prefix.
using PersistentBuffers = std::map<std::string, std::shared_ptr<MXFP8Tensor>, std::less<>>;

/// Writes received values into MXFP8 tensors whose addresses never change, so that CUDA graphs that
/// hold them stay valid.
///
/// Convert on receive: senders send plain values (one tensor) and need no transform. The receiver
/// quantises each slice at once if scales are 2-D, or the whole weight when all of it has arrived
/// if they are 1-D. Convert on send: both sides have the transform; data and scales travel, two
/// tensors per operation. In both modes a slice that cuts a block of 32 travels as plain values;
/// the block is quantised when its last element has arrived.
class MXFP8ReshardTransform final : public ReshardTransform {
 public:
  /// @param convertible_params  full names, on this rank, of the parameters to transform.
  /// @param persistent_buffers  empty on a rank that only sends.
  /// @param buffer_key_prefix   prefix of parameter names that the keys lack ("decoder.").
  MXFP8ReshardTransform(std::set<std::string, std::less<>> convertible_params,
                        PersistentBuffers persistent_buffers, std::string buffer_key_prefix = "",
                        bool convert_on_send = false);

  bool should_transform(std::string_view param_name) const override;
  Result<std::vector<WireTensor>> prepare_send(std::string_view param_name, const Box& src_slice,
                                               const Tensor& src_param,
                                               const Box& dst_slice) override;
  /// Errors: no buffer has this name; the slice is not inside it.
  Result<std::vector<WireTensor>> prepare_recv(std::string_view param_name,
                                               const Box& dst_slice) override;
  /// Errors: not the tensors of prepare_recv(); more elements arrived than the weight has.
  Result<> finalize_recv(std::string_view param_name, const Box& dst_slice,
                         std::span<const WireTensor> recv_buffers) override;
  void begin() override { pending_.clear(); }
  /// Errors: only some elements of a weight have arrived.
  Result<> finish() override;

  const PersistentBuffers& persistent_buffers() const { return persistent_buffers_; }
  bool convert_on_send() const { return convert_on_send_; }

 private:
  /// A weight that has arrived in part.
  struct Pending {
    std::shared_ptr<const OwnedTensor> values;  ///< bf16 [M, K], if plain values arrive.
    Index arrived = 0;                          ///< number of elements.
    std::vector<std::uint8_t>
        in_block;  ///< [M, K / 32]: elements that have arrived, if slices cut blocks.
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

/// True if the model's config says transformer_impl `inference_optimized` and fp8_recipe `mxfp8`,
/// that is, its weights are kept as MXFP8. False for null.
bool needs_mxfp8_conversion(const Module* model);

/// Errors: a weight of the target cannot become MXFP8 (named), though needs_mxfp8_conversion().
Result<> check_mxfp8_weights(const Module* model, Module* core);

/// If needs_mxfp8_conversion() and the plan has no transform: quantises the target's decoder
/// weights that have fp8_weight and attaches the transform. Weights that are MXFP8 already stay as
/// they are. `model` has the config, `core` the parameters.
Result<> setup_mxfp8_transform_on_plan(ReshardPlan& plan, const Module* model, Module* core);

}  // namespace reshard::megatron
