// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <vector>

#include "reshard/index/box.h"
#include "reshard/model/reported/parameter_metadata.h"

/// One parameter between one source and one destination replica, in Megatron-Core's terms: for
/// those who plan by themselves.
namespace reshard::megatron {

using reshard::ParameterMetadata;
using reshard::ShardingDescriptor;

/// A slice that a destination takes from one source rank; equal shapes.
struct SourceSlice {
  Rank src_rank;
  Box src_slice, dst_slice;
  friend bool operator==(const SourceSlice&, const SourceSlice&) = default;
};

/// The descriptor "tp" where either side is cut; none where neither is or a side has no tensor
/// group. A side that is not cut has one member, its owner. Errors: group size times local size
/// differs between the sides (a tensor that is marked cut and is replicated, for one).
Result<std::vector<ShardingDescriptor>> build_descriptors_for_param(
    const ParameterMetadata& src_metadata, const ParameterMetadata& dst_metadata);

/// What my_global_rank takes of a cut parameter, by destination offset. With Ns = source members *
/// src_stride, Nd likewise and L = lcm(Ns, Nd), the dimension is L equal units: destination segment
/// k of member r is segment r + k * Nd's members; unit u is in source segment u / (L / Ns), which
/// member (segment mod members) holds as its segment / members. partition_sizes: the same in each
/// packed block by itself, stride 1.
///
/// Empty without descriptors, and for a rank outside dst_dim_ranks. Errors: more than one
/// descriptor, or another than "tp" (unsupported); sizes that differ in sum; a length that L does
/// not divide (a stride that does not divide its side's local size).
Result<std::vector<SourceSlice>> plan_multi_dim_lcm(
    std::string_view param_name, const ParameterMetadata& src_metadata,
    const ParameterMetadata& dst_metadata, const std::vector<ShardingDescriptor>& descriptors,
    Rank my_global_rank);

/// The whole tensor of a parameter that nobody cuts: from the rank itself where both data parallel
/// groups are equal and it is in them, else from src_metadata's owner. Empty for a rank outside the
/// destination's group. Errors: shapes differ, no data parallel group.
Result<std::vector<SourceSlice>> finalize_dp_transfers(std::string_view param_name,
                                                       const ParameterMetadata& src_metadata,
                                                       const ParameterMetadata& dst_metadata,
                                                       Rank my_global_rank);

/// One of the two above, by whether either side is cut; what descriptors cannot say (the sides cut
/// different dimensions) goes to the general planner. Errors: theirs.
Result<std::vector<SourceSlice>> determine_source_ranks_for_dst_param(
    std::string_view param_name, const ParameterMetadata& src_metadata,
    const ParameterMetadata& dst_metadata, Rank my_global_rank);

}  // namespace reshard::megatron
