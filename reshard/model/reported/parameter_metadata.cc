// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/reported/parameter_metadata.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace reshard {
namespace {

std::optional<Index> number(std::string_view text) {
  Index value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || text[0] < '0' || text[0] > '9' || error != std::errc() ||
      end != text.data() + text.size())
    return std::nullopt;
  return value;
}

/// The position of an expert number in a name.
struct ExpertDigits {
  std::size_t begin = 0, size = 0;
  Index value = 0;
};

std::optional<ExpertDigits> expert_digits(std::string_view name) {
  std::string_view before;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    if (before == "local_experts")
      if (const auto k = number(part)) return ExpertDigits{begin, part.size(), *k};
    for (const std::string_view word : {"weight", "bias"})
      if (part.starts_with(word))
        if (const auto k = number(part.substr(word.size())))
          return ExpertDigits{begin + word.size(), part.size() - word.size(), *k};
    before = part;
    begin = end + 1;
  }
  return std::nullopt;
}

tl::unexpected<Error> bad(std::string_view name, const std::string& what) {
  return fail(Code::invalid_argument, fmt::format("parameter '{}': {}", name, what));
}

}  // namespace

void add_layer_module(LayerPrefixMap& map, std::string_view module_name, Index layer_number) {
  const std::size_t dot = module_name.rfind('.');
  const std::size_t last = dot == std::string_view::npos ? 0 : dot + 1;
  if (!number(module_name.substr(last))) return;
  map.insert_or_assign(std::string(module_name),
                       fmt::format("{}{}", module_name.substr(0, last), layer_number - 1));
}

std::string resolve_global_layer_number_in_name(std::string_view name, const LayerPrefixMap& map) {
  for (std::size_t end = name.size(); !map.empty(); end = name.rfind('.', end - 1)) {
    if (const auto it = map.find(name.substr(0, end)); it != map.end())
      return it->second + std::string(name.substr(end));
    if (name.substr(0, end).find('.') == std::string_view::npos) break;
  }
  return std::string(name);
}

std::optional<Index> detect_expert_index_from_param_name(std::string_view name) {
  const auto digits = expert_digits(name);
  return digits ? std::optional<Index>(digits->value) : std::nullopt;
}

std::string reported::with_expert_index(std::string_view name, Index expert) {
  const auto digits = expert_digits(name);
  std::string out(name.substr(0, digits->begin));
  return out.append(fmt::format_int(expert).str())
      .append(name.substr(digits->begin + digits->size));
}

Result<Index> reported::global_expert(std::string_view name, std::optional<Index> num_experts,
                                      Index group_size, Index position, Index local) {
  if (!num_experts) return bad(name, "an expert parameter needs num_experts");
  if (group_size < 1 || *num_experts % group_size != 0)
    return bad(name, fmt::format("an expert parallel group of {} ranks does not divide {} experts",
                                 group_size, *num_experts));
  const Index each = *num_experts / group_size;
  if (local >= each)
    return bad(name, fmt::format("local expert {} is beyond the {} that each of {} ranks has",
                                 local, each, group_size));
  return position * each + local;
}

Result<> assign_ep_resolved_name_inplace(ParameterMetadata& meta, std::string_view base_name) {
  const std::string base(base_name.empty() ? std::string_view(meta.name) : base_name);
  meta.resolved_name = base;
  meta.global_expert_index = std::nullopt;
  if (!meta.is_ep) return {};
  const auto local = detect_expert_index_from_param_name(base);
  if (!local) return {};
  if (meta.expert_parallel_group_ranks == nullptr)
    return bad(base, "an expert parameter needs expert_parallel_group_ranks");
  const auto& group = *meta.expert_parallel_group_ranks;
  const auto at = std::find(group.begin(), group.end(), meta.owner_rank);
  if (at == group.end())
    return bad(base,
               fmt::format("rank {} is not in its expert parallel group", meta.owner_rank.value()));
  const Index global =
      RESHARD_TRY(reported::global_expert(base, meta.num_experts, static_cast<Index>(group.size()),
                                          static_cast<Index>(at - group.begin()), *local));
  meta.global_expert_index = global;
  meta.resolved_name = reported::with_expert_index(base, global);
  return {};
}

Result<> assign_resolved_name_inplace(ParameterMetadata& meta, const LayerPrefixMap& map,
                                      std::string_view base_name) {
  const std::string_view base = base_name.empty() ? std::string_view(meta.name) : base_name;
  return assign_ep_resolved_name_inplace(meta, resolve_global_layer_number_in_name(base, map));
}

Result<std::optional<ShardingDescriptor>> sharding_descriptor(const ParameterMetadata& src,
                                                              const ParameterMetadata& dst) {
  if (!src.is_tp && !dst.is_tp) return std::nullopt;
  if (!src.tensor_parallel_group_ranks || !dst.tensor_parallel_group_ranks) return std::nullopt;
  const auto &from = *src.tensor_parallel_group_ranks, &to = *dst.tensor_parallel_group_ranks;
  const int dim = dst.is_tp ? dst.partition_dim : src.partition_dim;
  if (dim < 0 || dim >= src.shape.size() || dim >= dst.shape.size())
    return bad(dst.name, fmt::format("partition_dim {} is outside shapes {} and {}", dim,
                                     to_string(src.shape), to_string(dst.shape)));
  const Index src_world = src.is_tp ? static_cast<Index>(from.size()) : 1;
  const Index dst_world = dst.is_tp ? static_cast<Index>(to.size()) : 1;
  if (src_world * src.shape[dim] != dst_world * dst.shape[dim])
    return bad(dst.name, fmt::format("dimension {} is {}*{} on the source and {}*{} on the target",
                                     dim, src_world, src.shape[dim], dst_world, dst.shape[dim]));
  return ShardingDescriptor{
      "tp", dim, src.is_tp ? src.partition_stride : 1, dst.is_tp ? dst.partition_stride : 1,
      from, to};
}

}  // namespace reshard
