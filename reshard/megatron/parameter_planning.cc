// SPDX-License-Identifier: Apache-2.0
#include "reshard/megatron/parameter_planning.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "reshard/base/check.h"
#include "reshard/megatron/metadata.h"
#include "reshard/model/reported/gathered.h"
#include "reshard/plan/reshard_plan.h"

namespace reshard::megatron {
namespace {

using Slices = std::vector<SourceSlice>;

/// Part of the cut dimension that is divided among the members separately.
struct Block {
  Index src_offset = 0, dst_offset = 0;  ///< in the local tensors.
  Index length = 0;                      ///< over all members.
  Index src_stride = 1, dst_stride = 1;
};

/// @pre the descriptor's ranks and the tensors match
class Tiling {
 public:
  Tiling(std::string_view name, const ParameterMetadata& src, const ParameterMetadata& dst,
         const ShardingDescriptor& descriptor)
      : name_(name), src_(src), dst_(dst), d_(descriptor) {}

  Result<std::vector<Block>> blocks() const {
    const auto& from = src_.partition_sizes;
    const auto& to = dst_.partition_sizes;
    const Index length = dst_.shape[d_.dim] * dst_world();
    if (!from && !to) {
      RESHARD_TRY(
          conserved("dimension " + std::to_string(d_.dim), src_.shape[d_.dim], dst_.shape[d_.dim]));
      return std::vector<Block>{
          {0, 0, length, std::max<Index>(1, d_.src_stride), std::max<Index>(1, d_.dst_stride)}};
    }
    const std::size_t count = from ? from->size() : to->size();
    if (from && to && from->size() != to->size())
      return invalid_parameter(
          name_, fmt::format("partition_sizes of {} blocks on the source, {} on the target",
                             from->size(), to->size()));
    std::vector<Block> out;
    Index src_offset = 0, dst_offset = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const Index whole = from ? (*from)[i] * src_world() : (*to)[i] * dst_world();
      const Index src_size = from ? (*from)[i] : whole / src_world();
      const Index dst_size = to ? (*to)[i] : whole / dst_world();
      RESHARD_TRY(conserved("block " + std::to_string(i), src_size, dst_size));
      out.push_back({src_offset, dst_offset, whole, 1, 1});
      src_offset += src_size;
      dst_offset += dst_size;
    }
    return out;
  }

  /// The block's units that one destination member reads.
  Result<Slices> units(const Block& b, Index member) const {
    const Index ns = src_world() * b.src_stride, nd = dst_world() * b.dst_stride;
    const Index l = std::lcm(ns, nd);
    if (b.length % l != 0)
      return invalid_parameter(
          name_, fmt::format("{} rows of dimension {} are not {} equal units (lcm of {} and "
                             "{} segments)",
                             b.length, d_.dim, l, ns, nd));
    const Index unit = b.length / l, per_src = l / ns, per_dst = l / nd;
    Slices out;
    for (Index k = 0; k < b.dst_stride; ++k)
      for (Index i = 0; i < per_dst; ++i) {
        const Index u = (member + k * dst_world()) * per_dst + i;
        const Index segment = u / per_src;
        const Index from = b.src_offset + (segment / src_world() * per_src + u % per_src) * unit;
        const Index to = b.dst_offset + (k * per_dst + i) * unit;
        out.push_back({d_.src_dim_ranks[static_cast<std::size_t>(segment % src_world())],
                       part(src_.shape, from, unit), part(dst_.shape, to, unit)});
      }
    return out;
  }

 private:
  Index src_world() const { return static_cast<Index>(d_.src_dim_ranks.size()); }
  Index dst_world() const { return static_cast<Index>(d_.dst_dim_ranks.size()); }
  Box part(const Dims& shape, Index begin, Index size) const {
    return Box::whole(shape).with(d_.dim, Interval{begin, begin + size});
  }
  Result<> conserved(const std::string& what, Index src, Index dst) const {
    if (src * src_world() == dst * dst_world()) return {};
    return invalid_parameter(name_, fmt::format("{} is {}*{} on the source and {}*{} on the target",
                                                what, src_world(), src, dst_world(), dst));
  }

  std::string_view name_;
  const ParameterMetadata &src_, &dst_;
  const ShardingDescriptor& d_;
};

/// The metadata of a side's members, as if they had only this parameter.
Result<GatheredMetadata> alone(const ParameterMetadata& meta) {
  MetadataGatherer gatherer;
  const std::vector<Rank> owner{meta.owner_rank};
  const bool cut = meta.is_tp && meta.tensor_parallel_group_ranks != nullptr;
  for (Rank r : cut ? *meta.tensor_parallel_group_ranks : owner) {
    ParameterMetadata m = meta;
    m.name = "parameter";
    m.owner_rank = r;
    m.is_tp = cut;
    m.is_ep = false;
    m.expert_parallel_group_ranks = m.data_parallel_group_ranks = m.pipeline_parallel_group_ranks =
        nullptr;
    RESHARD_TRY(gatherer.add(RankMetadata{r, {m}, {}}));
  }
  return std::move(gatherer).finish();
}

Result<Slices> planned(const ParameterMetadata& src, const ParameterMetadata& dst, Rank rank) {
  const auto from = RESHARD_TRY(alone(src)), to = RESHARD_TRY(alone(dst));
  const GatheredPair pair = RESHARD_TRY(gathered_layouts(from, to));
  const Planner planner = RESHARD_TRY(Planner::make(pair.source, pair.target, {pair.ignore}));
  Slices out;
  for (const TransferOp& op : replayed_reshard_plan(planner, rank).recv_ops)
    out.push_back({op.peer_rank, op.peer_slice, op.my_slice});
  return out;
}

void sort_by_destination(Slices& slices) {
  std::stable_sort(slices.begin(), slices.end(), [](const SourceSlice& a, const SourceSlice& b) {
    return before(a.dst_slice, b.dst_slice);
  });
}

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

Result<std::vector<ShardingDescriptor>> build_descriptors_for_param(
    const ParameterMetadata& src_metadata, const ParameterMetadata& dst_metadata) {
  std::vector<ShardingDescriptor> out;
  auto found = RESHARD_TRY(sharding_descriptor(src_metadata, dst_metadata));
  if (!found) return out;
  if (!src_metadata.is_tp) found->src_dim_ranks = {src_metadata.owner_rank};
  if (!dst_metadata.is_tp) found->dst_dim_ranks = {dst_metadata.owner_rank};
  out.push_back(*std::move(found));
  return out;
}

Result<Slices> plan_multi_dim_lcm(std::string_view param_name,
                                  const ParameterMetadata& src_metadata,
                                  const ParameterMetadata& dst_metadata,
                                  const std::vector<ShardingDescriptor>& descriptors,
                                  Rank my_global_rank) {
  if (descriptors.empty()) return Slices{};
  if (descriptors.size() != 1 || descriptors[0].name != "tp")
    return fail(Code::unsupported, fmt::format("parameter '{}': expected a single descriptor 'tp'; "
                                               "determine_source_ranks_for_dst_param plans "
                                               "others",
                                               param_name));
  const ShardingDescriptor& d = descriptors[0];
  const auto at = std::ranges::find(d.dst_dim_ranks, my_global_rank);
  if (at == d.dst_dim_ranks.end()) return Slices{};
  if (d.dim < 0 || d.dim >= src_metadata.shape.size() || d.dim >= dst_metadata.shape.size() ||
      d.src_dim_ranks.empty())
    return invalid_parameter(param_name, "the descriptor does not match these tensors");
  const Tiling tiling(param_name, src_metadata, dst_metadata, d);
  Slices out;
  for (const Block& block : RESHARD_TRY(tiling.blocks())) {
    const Slices units = RESHARD_TRY(tiling.units(block, at - d.dst_dim_ranks.begin()));
    out.insert(out.end(), units.begin(), units.end());
  }
  sort_by_destination(out);
  return out;
}

Result<Slices> finalize_dp_transfers(std::string_view param_name,
                                     const ParameterMetadata& src_metadata,
                                     const ParameterMetadata& dst_metadata, Rank my_global_rank) {
  const GroupRanks& from = src_metadata.data_parallel_group_ranks;
  const GroupRanks& to = dst_metadata.data_parallel_group_ranks;
  if (from == nullptr || to == nullptr)
    return invalid_parameter(param_name, "a side has no data parallel group");
  if (!rank_in_group(my_global_rank, *to)) return Slices{};
  if (!(src_metadata.shape == dst_metadata.shape))
    return invalid_parameter(
        param_name, fmt::format("{} on the source and {} on the target, and neither cuts it",
                                to_string(src_metadata.shape), to_string(dst_metadata.shape)));
  const bool local = *from == *to;
  const Box whole = Box::whole(dst_metadata.shape);
  return Slices{{local ? my_global_rank : src_metadata.owner_rank, whole, whole}};
}

Result<Slices> determine_source_ranks_for_dst_param(std::string_view param_name,
                                                    const ParameterMetadata& src_metadata,
                                                    const ParameterMetadata& dst_metadata,
                                                    Rank my_global_rank) {
  const auto descriptors = build_descriptors_for_param(src_metadata, dst_metadata);
  if (!descriptors) {
    auto slices = planned(src_metadata, dst_metadata, my_global_rank);
    if (!slices) return tl::unexpected(descriptors.error());
    return slices;
  }
  if (!descriptors->empty())
    return plan_multi_dim_lcm(param_name, src_metadata, dst_metadata, *descriptors, my_global_rank);
  return finalize_dp_transfers(param_name, src_metadata, dst_metadata, my_global_rank);
}

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
