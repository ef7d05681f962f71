// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "reshard/model/reported/parameter_metadata.h"

/// Which of several source replicas a destination reads, as Megatron-Core chooses: for those who
/// plan by themselves. The planner below build_centralized_reshard_plan balances bytes instead.
namespace reshard::megatron {

/// Where source and destination have expert groups of equal size, the sources at dst_rank's own
/// position in its group: they hold the same experts. All sources where sizes differ (resolved
/// names decide then) or the destination has no expert group. Pointers into `sources`.
///
/// Errors: no source at that position (those that there are, as "rank r at p"), dst_rank outside
/// its expert group, an owner outside its own.
Result<std::vector<const ParameterMetadata*>> filter_by_ep_local_rank(
    std::span<const ParameterMetadata> sources, const ParameterMetadata& dst_metadata,
    Rank dst_rank);

/// Sources grouped by their data parallel group, groups in the order of their rank lists: group
/// dst_rank mod groups, entry (dst_rank / groups) mod entries of it. With one group: the first
/// source. @pre sources is not empty
const ParameterMetadata& round_robin_dp(std::span<const ParameterMetadata* const> sources,
                                        Rank dst_rank);

/// Of the sources that filter_by_ep_local_rank leaves, the one that dst_rank itself owns, else that
/// of round_robin_dp. Errors: no sources; those of the filter. Borrowed from `sources`.
Result<const ParameterMetadata*> select_src_metadata_balanced(
    std::span<const ParameterMetadata> sources, const ParameterMetadata& dst_metadata,
    Rank dst_rank);

}  // namespace reshard::megatron
