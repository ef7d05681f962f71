// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/families/engines/engine_sharding.h"

#include <fmt/format.h>

#include <algorithm>

namespace reshard::families {
namespace {

Result<> check_table(const std::string& family, const ExpertPlacement& how, Index physical,
                     const std::vector<Index>& table, std::size_t at) {
  const auto wrong = [&](std::string what) {
    return fail(Code::invalid_argument,
                fmt::format("{}: expert_map: list {} {}", family, at, what));
  };
  if (static_cast<Index>(table.size()) != physical)
    return wrong(fmt::format("has {} physical experts, must have {}={}+redundant={}", table.size(),
                             "num_experts", how.num_experts, physical - how.num_experts));
  std::vector<bool> seen(static_cast<std::size_t>(how.num_experts));
  for (Index logical : table) {
    if (logical < 0 || logical >= how.num_experts)
      return wrong(fmt::format("names expert {}; there are 0 to {}", logical, how.num_experts - 1));
    seen[static_cast<std::size_t>(logical)] = true;
  }
  const auto missing = std::find(seen.begin(), seen.end(), false);
  if (missing == seen.end()) return {};
  return wrong(fmt::format("lacks expert {}; every expert must be in it", missing - seen.begin()));
}

/// Physical experts, ordered so that consecutive runs belong to ranks 0, 1, ...
std::vector<Index> physical_order(Index physical, Index ep, bool round_robin) {
  std::vector<Index> order;
  const Index step = round_robin ? ep : 1;
  for (Index first = 0; first < step; ++first)
    for (Index p = first; p < physical; p += step) order.push_back(p);
  return order;
}

}  // namespace

EngineSizes read_engine_sizes(const LayoutSpec& spec, ErrorList& wrong) {
  EngineSizes s;
  s.tp = wrong.take(spec.integer("tp", 1), Index{1});
  s.dp = wrong.take(spec.integer("dp", 1), Index{1});
  s.ep = wrong.take(spec.integer("ep", 1), Index{1});
  s.pp = wrong.take(spec.integer("pp", 1), Index{1});
  s.replicas = wrong.take(spec.integer("replicas", 1), Index{1});
  s.vocab_multiple = wrong.take(spec.integer("vocab_multiple", 64), Index{64});
  s.redundant = wrong.take(spec.integer("redundant", 0, 0));
  s.offset = wrong.take(spec.integer("offset", 0, 0));
  return s;
}

bool has_type(const ModelConfig& c, std::initializer_list<std::string_view> types) {
  return std::find(types.begin(), types.end(), c.model_type) != types.end();
}

Result<std::vector<std::vector<Index>>> expert_orders(const std::string& family,
                                                      const ExpertPlacement& how,
                                                      const ExpertTables* tables) {
  const bool has_tables = tables != nullptr && !tables->empty();
  const Index physical = has_tables && how.redundant == 0
                             ? static_cast<Index>(tables->front().size())
                             : how.num_experts + how.redundant;
  ExpertTables logical;
  if (has_tables) {
    logical = *tables;
    if (logical.size() > 1 && static_cast<Index>(logical.size()) != how.num_layers)
      return fail(Code::invalid_argument,
                  fmt::format("{}: expert_map has {} lists; must be one, or one for each of the {} "
                              "layers with experts",
                              family, logical.size(), how.num_layers));
    for (std::size_t i = 0; i < logical.size(); ++i)
      RESHARD_TRY(check_table(family, how, std::max(physical, how.num_experts), logical[i], i));
  } else {
    logical.emplace_back();
    for (Index p = 0; p < physical; ++p) logical[0].push_back(p % how.num_experts);
  }
  const bool even = how.even || physical != how.num_experts || how.fused_shared > 0;
  if (even && physical % how.ep != 0)
    return fail(Code::invalid_argument,
                fmt::format("{}: ep={} does not divide num_experts+redundant={}; all ranks must "
                            "hold equally many experts",
                            family, how.ep, physical));
  const std::vector<Index> order = physical_order(physical, how.ep, how.round_robin);
  for (std::vector<Index>& table : logical) {
    std::vector<Index> arranged;
    Index of_rank = 0;
    for (Index p : order) {
      arranged.push_back(table[static_cast<std::size_t>(p)]);
      if (how.fused_shared == 0 || ++of_rank < physical / how.ep) continue;
      of_rank = 0;
      for (Index s = 0; s < how.fused_shared; ++s) arranged.push_back(how.num_experts + s);
    }
    table = std::move(arranged);
  }
  return logical;
}

Index num_expert_layers(const ModelConfig& config, bool mtp) {
  const auto has_experts = [](const LayerKind& kind) { return kind.ffn == Ffn::experts; };
  const auto count = [&](const std::vector<LayerKind>& kinds) {
    return static_cast<Index>(std::count_if(kinds.begin(), kinds.end(), has_experts));
  };
  return count(config.layers) + (mtp ? config.num_mtp * count(config.mtp_block) : 0);
}

}  // namespace reshard::families
