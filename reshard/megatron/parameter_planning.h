// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "reshard/index/box.h"
#include "reshard/model/reported/parameter_metadata.h"

// Megatron-Core's planning of a single parameter: which source replica a destination reads, and
// which slices of it. For callers that plan by themselves; build_centralized_reshard_plan() instead
// balances bytes over all replicas.

namespace reshard::megatron {

using reshard::ParameterMetadata;
using reshard::ShardingDescriptor;

/// A slice that a destination reads from one source rank; both have the same shape.
struct SourceSlice {
  Rank src_rank;
  Box src_slice, dst_slice;
  friend bool operator==(const SourceSlice&, const SourceSlice&) = default;
};

/// The descriptor "tp" if either side is cut; none if neither is, or a side has no tensor group. A
/// side that is not cut has one member, its owner. Errors: group size times local size differs
/// between the sides (for example, a replicated tensor that is marked as cut).
Result<std::vector<ShardingDescriptor>> build_descriptors_for_param(
    const ParameterMetadata& src_metadata, const ParameterMetadata& dst_metadata);

/// The slices of a cut parameter that my_global_rank reads, ordered by destination offset. With Ns
/// = source members * src_stride, Nd likewise for the destination, and L = lcm(Ns, Nd), the
/// dimension has L equal units. Segment k of destination member r is global segment r + k *
/// (destination members). Unit u is in source segment s = u / (L / Ns), which source member s mod
/// (source members) holds as its local segment s / (source members). With partition_sizes the same
/// holds in each packed block separately, with stride 1.
///
/// Empty without descriptors, and for a rank outside dst_dim_ranks. Errors: more than one
/// descriptor, or one other than "tp" (`unsupported`); the sides' total sizes differ; L does not
/// divide the dimension's length (because a stride does not divide its side's local size).
Result<std::vector<SourceSlice>> plan_multi_dim_lcm(
    std::string_view param_name, const ParameterMetadata& src_metadata,
    const ParameterMetadata& dst_metadata, const std::vector<ShardingDescriptor>& descriptors,
    Rank my_global_rank);

/// The whole tensor of a parameter that neither side cuts: from the rank itself if it is in both
/// data parallel groups and they are equal, otherwise from src_metadata's owner. Empty for a rank
/// outside the destination's group. Errors: shapes differ; a side has no data parallel group.
Result<std::vector<SourceSlice>> finalize_dp_transfers(std::string_view param_name,
                                                       const ParameterMetadata& src_metadata,
                                                       const ParameterMetadata& dst_metadata,
                                                       Rank my_global_rank);

/// Calls plan_multi_dim_lcm() if either side is cut, otherwise finalize_dp_transfers(). If no
/// descriptor can express the cuts (the sides cut different dimensions), uses the general planner.
/// Errors: theirs.
Result<std::vector<SourceSlice>> determine_source_ranks_for_dst_param(
    std::string_view param_name, const ParameterMetadata& src_metadata,
    const ParameterMetadata& dst_metadata, Rank my_global_rank);

/// If source and destination have expert groups of equal size: the sources at dst_rank's position
/// in its group, which hold the same experts. All sources if the sizes differ (resolved names then
/// decide) or the destination has no expert group. Returns pointers into `sources`.
///
/// Errors: no source at that position (the error lists the sources, as "rank r at p"); dst_rank is
/// not in its expert group; an owner is not in its own.
Result<std::vector<const ParameterMetadata*>> filter_by_ep_local_rank(
    std::span<const ParameterMetadata> sources, const ParameterMetadata& dst_metadata,
    Rank dst_rank);

/// Groups the sources by data parallel group, in the order of the groups' rank lists, and returns
/// entry (dst_rank / groups) mod entries of group (dst_rank mod groups). With one group: the first
/// source.
/// @pre sources is not empty
const ParameterMetadata& round_robin_dp(std::span<const ParameterMetadata* const> sources,
                                        Rank dst_rank);

/// Selects from the sources that filter_by_ep_local_rank() returns: the one that dst_rank itself
/// owns, otherwise that of round_robin_dp(). Returns a pointer into `sources`. Errors: no sources;
/// those of the filter.
Result<const ParameterMetadata*> select_src_metadata_balanced(
    std::span<const ParameterMetadata> sources, const ParameterMetadata& dst_metadata,
    Rank dst_rank);

}  // namespace reshard::megatron
