// SPDX-License-Identifier: Apache-2.0
#include "reshard/refit/megatron/source_choice.h"

#include <fmt/format.h>

#include <map>

#include "reshard/base/check.h"
#include "reshard/refit/megatron/metadata.h"

namespace reshard::megatron {
namespace {

using Sources = std::vector<const ParameterMetadata*>;

Result<Index> expert_position(const ParameterMetadata& source) {
  return rank_in_group(source.owner_rank, *source.expert_parallel_group_ranks);
}

/// "rank 4 at 0, rank 5 at 1"
std::string available(std::span<const ParameterMetadata> sources) {
  std::string text;
  for (const ParameterMetadata& m : sources) {
    const auto at = m.expert_parallel_group_ranks ? expert_position(m) : Result<Index>(-1);
    text += fmt::format("{}rank {} at {}", text.empty() ? "" : ", ", m.owner_rank.value(),
                        at && *at >= 0 ? std::to_string(*at) : "none");
  }
  return text;
}

}  // namespace

Result<Sources> filter_by_ep_local_rank(std::span<const ParameterMetadata> sources,
                                        const ParameterMetadata& dst_metadata, Rank dst_rank) {
  Sources all;
  for (const ParameterMetadata& m : sources) all.push_back(&m);
  const GroupRanks& group = dst_metadata.expert_parallel_group_ranks;
  if (group == nullptr || sources.empty()) return all;
  const Index position = RESHARD_TRY(rank_in_group(dst_rank, *group));
  const GroupRanks& from = sources[0].expert_parallel_group_ranks;
  if (from == nullptr || from->size() != group->size()) return all;
  Sources matching;
  for (const ParameterMetadata& m : sources)
    if (m.expert_parallel_group_ranks != nullptr && RESHARD_TRY(expert_position(m)) == position)
      matching.push_back(&m);
  if (matching.empty())
    return fail(Code::not_found,
                fmt::format("parameter '{}': no source at position {} of its expert parallel group "
                            "for rank {}; there are {}",
                            dst_metadata.name, position, dst_rank.value(), available(sources)));
  return matching;
}

const ParameterMetadata& round_robin_dp(std::span<const ParameterMetadata* const> sources,
                                        Rank dst_rank) {
  RESHARD_CHECK(!sources.empty());
  std::map<std::vector<Rank>, Sources> groups;
  for (const ParameterMetadata* m : sources)
    groups[m->data_parallel_group_ranks ? *m->data_parallel_group_ranks : std::vector<Rank>{}]
        .push_back(m);
  if (groups.size() == 1) return *sources[0];
  const auto rank = dst_rank.index();
  const Sources& chosen =
      std::next(groups.begin(), static_cast<std::ptrdiff_t>(rank % groups.size()))->second;
  return *chosen[rank / groups.size() % chosen.size()];
}

Result<const ParameterMetadata*> select_src_metadata_balanced(
    std::span<const ParameterMetadata> sources, const ParameterMetadata& dst_metadata,
    Rank dst_rank) {
  if (sources.empty())
    return fail(Code::invalid_argument,
                fmt::format("parameter '{}': no sources to choose from", dst_metadata.name));
  const Sources candidates = RESHARD_TRY(filter_by_ep_local_rank(sources, dst_metadata, dst_rank));
  for (const ParameterMetadata* m : candidates)
    if (m->owner_rank == dst_rank) return m;
  return &round_robin_dp(candidates, dst_rank);
}

}  // namespace reshard::megatron
