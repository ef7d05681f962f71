// SPDX-License-Identifier: Apache-2.0
// The part of a plan in which ranks of the target relay. A tree takes the place of its ranks on the
// line of a supply: its bytes leave a holder once. Trees pay if the busiest network interface then
// carries less; both plans are added up from the lines alone, without any transfer.
#include <algorithm>
#include <map>
#include <set>

#include "reshard/base/check.h"
#include "reshard/plan/planner_state.h"

namespace reshard {
namespace {

/// Chains that message ids have room for.
constexpr Index kMaxChains = Index{1} << 37;

/// Bytes that leave and enter each network interface.
class NicLoads {
 public:
  explicit NicLoads(const RankPlaces& places) : places_(places) {}
  void add(Rank from, Rank to, Index bytes) {
    if (domain_of(places_, from) == domain_of(places_, to)) return;
    busiest_ = std::max(busiest_, out_[nic_of(places_, from)] += bytes);
    busiest_ = std::max(busiest_, in_[nic_of(places_, to)] += bytes);
  }
  Index busiest() const { return busiest_; }

 private:
  const RankPlaces& places_;
  std::map<std::int32_t, Index> out_, in_;
  Index busiest_ = 0;
};

std::set<std::int32_t> domains_of(const RankSet& ranks, const RankPlaces& places) {
  std::set<std::int32_t> out;
  ranks.for_each([&](Rank r) { out.insert(domain_of(places, r)); });
  return out;
}

}  // namespace

/// Gives each piece the tree of the ranks that want it, and have no holder near them.
void Planner::State::plant_trees(const RankPlaces& places) {
  std::map<std::pair<SetId, SetId>, std::pair<SetId, std::int32_t>> known;  // by remote, holders
  std::map<SetId, std::int32_t> tree_of_set;
  for (std::size_t p = 0; p < pieces_.size(); ++p) {
    if (!relayable_[p]) continue;
    for (Piece& piece : pieces_[p]) {
      const auto [it, fresh] =
          known.try_emplace({piece.remote, piece.holders}, std::pair(piece.remote, -1));
      if (fresh) {
        const RankSet far =
            without_holder_nearby((*sets_)[piece.remote], (*sets_)[piece.holders], places);
        if (far.size() > 1) {
          const auto [tree, made] =
              tree_of_set.try_emplace(sets_->intern(far), static_cast<std::int32_t>(trees_.size()));
          if (made) trees_.emplace_back(far, places);
          RankSet demand = (*sets_)[piece.remote] - far;
          demand.insert(on_line(tree->second));
          it->second = {sets_->intern(demand), tree->second};
        }
      }
      std::tie(piece.demand, piece.tree) = it->second;
    }
  }
}

/// Numbers the chains: (supply, tree, share of the supply, stripe). False: there are too many.
bool Planner::State::number_chains() {
  Index next = 0;
  for (std::size_t s = 0; s < supplies_.size(); ++s)
    demand_[s].for_each_overlap(0, demand_[s].bytes(), [&](Rank on, Index, Index) {
      if (!is_tree(on)) return;
      chains_[{s, on}] = next;
      next += static_cast<Index>(balance_.shares[s].size()) * tree_of(on).stripes();
    });
  return next < kMaxChains;
}

Index Planner::State::chain_of(std::size_t supply, Rank tree, Rank holder, int stripe) const {
  const auto& shares = balance_.shares[supply];
  const auto share = std::ranges::find(shares, holder, &Balance::Share::rank) - shares.begin();
  return chains_.at({supply, tree}) + share * tree_of(tree).stripes() + stripe;
}

/// The bytes of the busiest network interface, in one direction.
Index Planner::State::busiest_nic(const RankPlaces& places) const {
  NicLoads loads(places);
  for (std::size_t s = 0; s < supplies_.size(); ++s) {
    const auto& shares = balance_.shares[s];
    for (std::size_t i = 0; i < shares.size(); ++i) {
      const Rank holder = shares[i].rank;
      const Index begin = shares[i].begin,
                  end = i + 1 == shares.size() ? supplies_[s].bytes : shares[i + 1].begin;
      demand_[s].for_each_overlap(begin, end, [&](Rank on, Index from, Index to) {
        const Index lo = std::max(begin, from), hi = std::min(end, to);
        if (!is_tree(on)) return loads.add(holder, on, hi - lo);
        const RelayTree& tree = tree_of(on);
        tree.for_each_stripe(from, to, lo, hi, [&](int stripe, Index first, Index last) {
          for (const RelayTree::Node& node : tree.nodes(stripe))
            loads.add(node.hop == 0 ? holder : node.parent, node.rank, last - first);
        });
      });
    }
  }
  return loads.busiest();
}

/// RelaySummary::least_bytes.
Index Planner::State::least_nic(const RankPlaces& places) const {
  std::map<std::int32_t, std::set<std::int32_t>> nics;  // by domain
  std::map<std::int32_t, Rank> number;                  // by interface
  ranks_.for_each([&](Rank r) {
    const std::int32_t nic = nic_of(places, r);
    nics[domain_of(places, r)].insert(nic);
    number.try_emplace(nic, Rank(static_cast<Rank::rep>(number.size())));
  });
  std::map<std::pair<SetId, SetId>, Index> bytes;  // by remote, holders
  for (std::size_t p = 0; p < pieces_.size(); ++p)
    for (const Piece& piece : pieces_[p])
      bytes[{piece.remote, piece.holders}] += piece.bytes * tensors_of_pair_[p];
  std::map<std::int32_t, Index> in;  // by domain
  std::vector<Supply> out;           // held by interfaces
  for (const auto& [sets, n] : bytes) {
    const RankSet& holders = (*sets_)[sets.second];
    const auto to =
        domains_of(without_holder_nearby((*sets_)[sets.first], holders, places), places);
    if (to.empty()) continue;
    for (const std::int32_t domain : to) in[domain] += n;
    Supply& supply = out.emplace_back();
    holders.for_each([&](Rank r) { supply.holders.insert(number.at(nic_of(places, r))); });
    supply.bytes = n;
  }
  Index least = balance(out).optimal_max;
  for (const auto& [domain, n] : in) {
    const auto k = static_cast<Index>(nics.at(domain).size());
    least = std::max(least, n / k + (n % k != 0 ? 1 : 0));
  }
  return least;
}

void Planner::State::add_relays(const RelayOptions& options) {
  RelaySummary& summary = relay_summary_.emplace();
  summary.direct_bytes = summary.busiest_bytes = busiest_nic(options.places);
  summary.least_bytes = least_nic(options.places);
  summary.hops = summary.direct_bytes > 0 ? 1 : 0;
  plant_trees(options.places);
  if (trees_.empty()) return;
  auto supplies = std::move(supplies_);
  auto demand = std::move(demand_);
  auto direct = std::move(balance_);
  find_demand();
  balance_ = balance(supplies_);
  const bool numbered = number_chains();
  const Index relayed = busiest_nic(options.places);
  if (numbered && static_cast<double>(summary.direct_bytes) >=
                      static_cast<double>(relayed) * options.least_gain) {
    summary.used = true;
    summary.busiest_bytes = relayed;
    for (const RelayTree& tree : trees_) summary.hops = std::max(summary.hops, tree.hops());
    return;
  }
  supplies_ = std::move(supplies);
  demand_ = std::move(demand);
  balance_ = std::move(direct);
  trees_.clear();
  chains_.clear();
  for (auto& pieces : pieces_)
    for (Piece& piece : pieces) {
      piece.demand = piece.remote;
      piece.tree = -1;
    }
}

}  // namespace reshard
