// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/families/rules/expert_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace reshard::families {
namespace {

/// The largest number of physical experts in a layer.
constexpr Index kMaxPhysical = Index{1} << 17;

Result<> check_table(const ExpertPlacement& how, Index physical, const std::vector<Index>& table,
                     std::size_t at) {
  const auto wrong = [&](std::string what) {
    return fail(Code::invalid_argument, fmt::format("expert_map: list {} {}", at, what));
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

/// The text before the first number of a name, and the number.
std::pair<std::string, Index> layer_of(std::string_view name) {
  const std::size_t at = std::min(name.find_first_of("0123456789"), name.size());
  Index number = 0;
  std::from_chars(name.data() + at, name.data() + name.size(), number);
  return {std::string(name.substr(0, at)), number};
}

}  // namespace

Result<std::vector<std::vector<Index>>> expert_orders(const ExpertPlacement& how,
                                                      const ExpertTables* tables) {
  const bool has_tables = tables != nullptr && !tables->empty();
  const Index physical = has_tables && how.redundant == 0
                             ? static_cast<Index>(tables->front().size())
                             : how.num_experts + how.redundant;
  if (physical > kMaxPhysical)
    return fail(Code::invalid_argument,
                fmt::format("num_experts+redundant={} exceeds {}", physical, kMaxPhysical));
  ExpertTables logical;
  if (has_tables) {
    logical = *tables;
    if (logical.size() > 1 && static_cast<Index>(logical.size()) != how.num_layers)
      return fail(Code::invalid_argument,
                  fmt::format("expert_map has {} lists; must be one, or one for each of the {} "
                              "layers with experts",
                              logical.size(), how.num_layers));
    for (std::size_t i = 0; i < logical.size(); ++i)
      RESHARD_TRY(check_table(how, std::max(physical, how.num_experts), logical[i], i));
  } else {
    logical.emplace_back();
    for (Index p = 0; p < physical; ++p) logical[0].push_back(p % how.num_experts);
  }
  const bool even = how.even || physical != how.num_experts || how.behind > 0;
  if (even && physical % how.ep != 0)
    return fail(Code::invalid_argument,
                fmt::format("ep={} does not divide num_experts+redundant={}; all ranks must hold "
                            "equally many experts",
                            how.ep, physical));
  const std::vector<Index> order = physical_order(physical, how.ep, how.round_robin);
  for (std::vector<Index>& table : logical) {
    std::vector<Index> arranged;
    Index of_rank = 0;
    for (Index p : order) {
      arranged.push_back(table[static_cast<std::size_t>(p)]);
      if (how.behind == 0 || ++of_rank < physical / how.ep) continue;
      of_rank = 0;
      for (Index s = 0; s < how.behind; ++s) arranged.push_back(how.num_experts + s);
    }
    table = std::move(arranged);
  }
  return logical;
}

void ExpertOrders::add_layer(std::string_view tensor) { layers_.emplace(layer_of(tensor), 0); }

Result<const std::vector<Index>*> ExpertOrders::of(std::string_view tensor, ExpertPlacement how) {
  if (!numbered_) {
    std::size_t next = 0;
    for (auto& [layer, number] : layers_) number = next++;
    numbered_ = true;
  }
  const auto key = std::tuple(how.num_experts, how.ep, how.even, how.behind);
  auto found = made_.find(key);
  if (found == made_.end()) {
    how.num_layers = static_cast<Index>(layers_.size());
    found = made_.emplace(key, RESHARD_TRY(expert_orders(how, tables_))).first;
  }
  const auto& orders = found->second;
  return orders.size() == 1 ? orders.data() : &orders[layers_.at(layer_of(tensor))];
}

}  // namespace reshard::families
