// SPDX-License-Identifier: Apache-2.0
#include "reshard/plan/relays/relays.h"

#include <algorithm>
#include <map>
#include <set>

#include "reshard/base/check.h"

namespace reshard {
namespace {

/// The first rank of each network interface of a domain's ranks, ascending.
std::vector<Rank> entries_of(const std::vector<Rank>& ranks, const RankPlaces& places) {
  std::vector<Rank> entries;
  std::set<std::int32_t> nics;
  for (const Rank r : ranks)
    if (nics.insert(nic_of(places, r)).second) entries.push_back(r);
  return entries;
}

/// The least number of stripes with which the busiest entry of all domains gets the least part of
/// the bytes. `entries`: by domain, descending.
int even_stripes(const std::vector<int>& entries) {
  constexpr int kMaxTimes = 4;
  int best = entries.front();
  double least = 2;
  for (int n = best; n <= kMaxTimes * entries.front(); ++n) {
    double most = 0;
    for (const int e : entries) most = std::max(most, static_cast<double>((n + e - 1) / e) / n);
    if (most < least - 1e-9) {
      best = n;
      least = most;
    }
  }
  return best;
}

std::int32_t listed(const std::vector<std::int32_t>& list, Rank r) {
  // Numbers of ranks that are not listed are below those of any that are.
  return r.index() < list.size() ? list[r.index()] : -1 - r.value();
}

}  // namespace

std::int32_t domain_of(const RankPlaces& places, Rank r) { return listed(places.domain, r); }
std::int32_t nic_of(const RankPlaces& places, Rank r) { return listed(places.nic, r); }

RankSet without_holder_nearby(const RankSet& wanting, const RankSet& holders,
                              const RankPlaces& places) {
  std::set<std::int32_t> near;
  holders.for_each([&](Rank r) { near.insert(domain_of(places, r)); });
  RankSet out;
  wanting.for_each([&](Rank r) {
    if (!near.contains(domain_of(places, r))) out.insert(r);
  });
  return out;
}

RelayTree::RelayTree(const RankSet& ranks, const RankPlaces& places) {
  std::map<std::int32_t, std::size_t> known;
  std::vector<std::vector<Rank>> domains;  // in the order of their first ranks
  ranks.for_each([&](Rank r) {
    const auto [at, added] = known.try_emplace(domain_of(places, r), domains.size());
    if (added) domains.emplace_back();
    domains[at->second].push_back(r);
    ++size_;
  });
  // The last domain sends to no other: let it be one with few interfaces.
  const auto entries = [&](const std::vector<Rank>& d) { return entries_of(d, places).size(); };
  std::ranges::stable_sort(domains, std::ranges::greater(), entries);
  std::vector<int> counts;
  for (const auto& domain : domains) counts.push_back(static_cast<int>(entries(domain)));
  stripes_ = even_stripes(counts);
  for (int i = 0; i < stripes_; ++i) add_stripe(domains, places, i);
}

void RelayTree::add_stripe(const std::vector<std::vector<Rank>>& domains, const RankPlaces& places,
                           int stripe) {
  const Rank none(-1);
  const std::size_t begin = nodes_.size();
  Rank last_entry = none;
  std::int32_t depth = 0;
  for (const auto& domain : domains) {
    const auto entries = entries_of(domain, places);
    const Rank entry = entries[static_cast<std::size_t>(stripe) % entries.size()];
    const auto at = static_cast<std::size_t>(std::ranges::find(domain, entry) - domain.begin());
    Rank parent = last_entry;
    for (std::size_t k = 0; k < domain.size(); ++k) {
      const Rank r = domain[(at + k) % domain.size()];
      nodes_.push_back({r, parent, depth + static_cast<std::int32_t>(k), {none, none}});
      parent = r;
    }
    if (last_entry == none) first_.push_back(entry);
    last_entry = entry;
    hops_ = std::max(hops_, depth + static_cast<std::int32_t>(domain.size()));
    ++depth;
  }
  std::sort(nodes_.begin() + static_cast<std::ptrdiff_t>(begin), nodes_.end(),
            [](const Node& a, const Node& b) { return a.rank < b.rank; });
  const std::span<Node> mine = std::span(nodes_).subspan(begin);
  for (const Node& node : mine) {
    if (node.parent == none) continue;
    Node& parent = *std::ranges::lower_bound(mine, node.parent, {}, &Node::rank);
    parent.next[parent.next[0] == none ? 0 : 1] = node.rank;
  }
}

const RelayTree::Node& RelayTree::node(int stripe, Rank r) const {
  const auto mine = nodes(stripe);
  const auto at = std::ranges::lower_bound(mine, r, {}, &Node::rank);
  RESHARD_CHECK(at != mine.end() && at->rank == r);
  return *at;
}

}  // namespace reshard
