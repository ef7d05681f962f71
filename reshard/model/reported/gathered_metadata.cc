// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/reported/gathered_metadata.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "reshard/base/hash.h"

namespace reshard {
namespace {

using Parameter = GatheredMetadata::Parameter;
using Template = GatheredMetadata::Template;

constexpr Index kMaxExtent = Index{1} << 48;

std::uint64_t digest(const Template& t) {
  Digest d;
  d.add(t.parameters.size());
  for (const Parameter& p : t.parameters) {
    d.add(p.name).add(static_cast<int>(p.dtype)).add(p.shape.size());
    for (Index n : p.shape) d.add(n);
    d.add(p.is_tp).add(p.is_ep).add(p.partition_dim).add(p.partition_stride);
  }
  for (const auto& [local, global] : t.layer_module_prefix_map) d.add(local).add(global);
  return d.value();
}

std::uint64_t digest(const std::vector<Rank>& ranks) {
  Digest d;
  for (Rank r : ranks) d.add(r.value());
  return d.value();
}

tl::unexpected<Error> bad(const std::string& what) { return fail(Code::invalid_argument, what); }

/// The index of the value in `table`, which is extended if needed; `bucket` lists candidates with
/// the same digest.
template <class T>
std::uint32_t intern(std::vector<T>& table, std::vector<std::uint32_t>& bucket, T value) {
  for (std::uint32_t id : bucket)
    if (table[id] == value) return id;
  bucket.push_back(static_cast<std::uint32_t>(table.size()));
  table.push_back(std::move(value));
  return bucket.back();
}

/// The template and the groups of the report of a rank.
class RankReport {
 public:
  explicit RankReport(const RankMetadata& rank) : rank_(rank) {}

  Result<> run() {
    std::set<std::string_view> names;
    layout.layer_module_prefix_map = rank_.layer_module_prefix_map;
    layout.parameters.reserve(rank_.parameters.size());
    for (const ParameterMetadata& p : rank_.parameters) {
      const auto added =
          names.insert(p.name).second ? add(p) : Result<>(bad("the rank reports this name twice"));
      if (!added)
        return tl::unexpected(
            Error(added.error())
                .in(fmt::format("rank {}: parameter '{}'", rank_.rank.value(), p.name)));
    }
    return {};
  }

  Template layout;
  std::vector<GroupRanks> groups;

 private:
  Result<> add(const ParameterMetadata& p) {
    if (p.owner_rank != rank_.rank)
      return bad(fmt::format("its owner is rank {}", p.owner_rank.value()));
    if (p.element_size * 8 != bits(p.dtype))
      return bad(fmt::format("element_size {} is not that of {}", p.element_size, name(p.dtype)));
    Parameter q{p.name,
                p.shape,
                p.dtype,
                p.is_tp,
                p.is_ep,
                p.partition_dim,
                p.partition_stride,
                p.partition_sizes,
                p.num_experts};
    q.tensor_group = RESHARD_TRY(group(p.tensor_parallel_group_ranks, p.is_tp));
    q.expert_group = RESHARD_TRY(group(p.expert_parallel_group_ranks, p.is_ep));
    q.data_group = RESHARD_TRY(group(p.data_parallel_group_ranks, false));
    q.pipeline_group = RESHARD_TRY(group(p.pipeline_parallel_group_ranks, false));
    RESHARD_TRY(check_parameter(q));
    layout.parameters.push_back(std::move(q));
    return {};
  }

  Result<std::int8_t> group(const GroupRanks& ranks, bool must_hold) {
    if (ranks == nullptr) return std::int8_t{-1};
    for (std::size_t i = 0; i < groups.size(); ++i)
      if (groups[i] == ranks || *groups[i] == *ranks) {
        if (must_hold) RESHARD_TRY(holds_me(*ranks));
        return static_cast<std::int8_t>(i);
      }
    if (groups.size() == kMaxGroupsOfRank)
      return bad(fmt::format("the rank names more than {} groups", kMaxGroupsOfRank));
    if (must_hold) RESHARD_TRY(holds_me(*ranks));
    groups.push_back(ranks);
    return static_cast<std::int8_t>(groups.size() - 1);
  }

  Result<> holds_me(const std::vector<Rank>& ranks) const {
    if (std::count(ranks.begin(), ranks.end(), rank_.rank) == 1) return {};
    return bad("the rank must be in its parallel group exactly once");
  }

  const RankMetadata& rank_;
};

}  // namespace

Result<> check_parameter(const Parameter& p) {
  if (p.name.empty() || p.name.size() > kMaxParameterName)
    return bad(fmt::format("a name must have 1 to {} characters", kMaxParameterName));
  if (bits(p.dtype) % 8 != 0)
    return bad(
        fmt::format("{} elements are not whole bytes; report the tensor as U8", name(p.dtype)));
  Index elements = 1;
  for (Index n : p.shape) {
    if (n < 0 || n > kMaxExtent) return bad(fmt::format("a dimension of {} elements", n));
    if (n > 0 && elements > kMaxExtent / n) return bad("its shape has too many elements");
    elements *= n;
  }
  if (p.num_experts && (*p.num_experts < 1 || *p.num_experts > kMaxExtent))
    return bad(fmt::format("num_experts={}", *p.num_experts));
  if (!p.is_tp) return {};
  if (p.tensor_group < 0) return bad("it is cut but names no tensor parallel group");
  if (p.partition_dim < 0 || p.partition_dim >= p.shape.size())
    return bad(fmt::format("partition_dim {} is outside its shape {}", p.partition_dim,
                           to_string(p.shape)));
  const Index local = p.shape[p.partition_dim];
  if (p.partition_sizes) {
    Index sum = 0;
    for (Index n : *p.partition_sizes) {
      if (n < 0 || n > local - sum)
        return bad(fmt::format("partition_sizes do not sum to its {} rows", local));
      sum += n;
    }
    if (sum != local)
      return bad(fmt::format("partition_sizes sum to {}, not to its {} rows", sum, local));
  } else if (p.partition_stride < 1 || local % p.partition_stride != 0) {
    return bad(
        fmt::format("partition_stride {} does not divide its {} rows", p.partition_stride, local));
  }
  return {};
}

Result<> MetadataGatherer::add(const RankMetadata& rank) {
  RankReport report(rank);
  RESHARD_TRY(report.run());
  std::vector<std::uint32_t> ids;
  for (const GroupRanks& g : report.groups) ids.push_back(group_id(*g));
  return add(rank.rank, template_id(std::move(report.layout)), std::move(ids));
}

Result<> MetadataGatherer::add(const GatheredMetadata& other) {
  std::vector<std::uint32_t> templates, groups;
  for (const Template& t : other.templates) templates.push_back(template_id(t));
  for (const auto& g : other.groups) groups.push_back(group_id(g));
  for (const auto& entry : other.ranks) {
    std::vector<std::uint32_t> ids;
    for (std::uint32_t g : entry.groups) ids.push_back(groups[g]);
    RESHARD_TRY(add(entry.rank, templates[entry.layout], std::move(ids)));
  }
  return {};
}

Result<> MetadataGatherer::add(Rank rank, std::uint32_t layout, std::vector<std::uint32_t> groups) {
  if (rank.value() < 0 || rank.value() >= 1 << 20)
    return bad(fmt::format("rank {} must be between 0 and {}", rank.value(), (1 << 20) - 1));
  if (!seen_.emplace(rank, true).second)
    return bad(fmt::format("rank {} reports twice", rank.value()));
  all_.ranks.push_back({rank, layout, std::move(groups)});
  return {};
}

std::uint32_t MetadataGatherer::group_id(const std::vector<Rank>& ranks) {
  return intern(all_.groups, groups_[digest(ranks)], ranks);
}

std::uint32_t MetadataGatherer::template_id(Template layout) {
  const std::uint64_t key = digest(layout);
  return intern(all_.templates, templates_[key], std::move(layout));
}

GatheredMetadata MetadataGatherer::finish() && {
  std::sort(all_.ranks.begin(), all_.ranks.end(),
            [](const auto& a, const auto& b) { return a.rank < b.rank; });
  return std::move(all_);
}

Result<RankMetadata> expand(const GatheredMetadata& all, std::size_t i) {
  const auto& entry = all.ranks[i];
  const Template& t = all.templates[entry.layout];
  RankMetadata out{entry.rank, {}, t.layer_module_prefix_map};
  std::vector<GroupRanks> groups;
  for (std::uint32_t g : entry.groups)
    groups.push_back(std::make_shared<const std::vector<Rank>>(all.groups[g]));
  const auto group = [&](std::int8_t at) {
    return at < 0 ? nullptr : groups[static_cast<std::size_t>(at)];
  };
  for (const Parameter& p : t.parameters) {
    ParameterMetadata m{p.name,
                        p.shape,
                        p.dtype,
                        bits(p.dtype) / 8,
                        p.is_tp,
                        p.partition_dim,
                        p.partition_stride,
                        p.partition_sizes,
                        p.is_ep,
                        p.num_experts,
                        entry.rank,
                        group(p.tensor_group),
                        group(p.expert_group),
                        group(p.data_group),
                        group(p.pipeline_group)};
    RESHARD_TRY(assign_resolved_name_inplace(m, out.layer_module_prefix_map));
    out.parameters.push_back(std::move(m));
  }
  return out;
}

}  // namespace reshard
