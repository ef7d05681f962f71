// SPDX-License-Identifier: Apache-2.0
// Replicas that relay bytes to each other. Ranks that want the same bytes, and have no holder of
// them in their domain, form a tree for each stripe of these bytes: a holder sends to the first
// domain, the entry of each domain sends to that of the next, and in a domain the bytes go round
// from rank to rank. So every stripe enters a domain once; other stripes enter it by its other
// network interfaces. Domains with more interfaces come first. Each rank derives the trees alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "reshard/sharding/rank_set.h"

namespace reshard {

/// The places of ranks, as far as plans depend on them. A rank beyond the lists is in a domain of
/// its own.
struct RankPlaces {
  /// The number of each rank's domain. Ranks of a domain reach each other without a network
  /// interface: they share a host, or an NVLink domain.
  std::vector<std::int32_t> domain;
  /// The number of the network interface that each rank uses. All have one rate. Ranks of
  /// different domains have different ones.
  std::vector<std::int32_t> nic;
};

/// Who sends.
enum class RouteMode : std::uint8_t {
  direct,     ///< sources alone.
  automatic,  ///< also ranks of the target that have received, where this gains enough.
};
/// "direct" or "auto"
constexpr std::string_view name(RouteMode routes) {
  return routes == RouteMode::direct ? "direct" : "auto";
}

struct RelayOptions {
  RankPlaces places;
  /// Replicas relay if the busiest network interface then carries this many times fewer bytes.
  double least_gain = 1.1;
};

/// The position of a transfer among those of the same bytes. Chains have the same number on all
/// ranks.
struct RelayHop {
  Index chain = -1;  ///< the holder, the ranks and the stripe that it belongs to; -1: no relays.
  std::int32_t hop = 0;   ///< ranks that relayed the bytes before.
  std::int32_t hops = 0;  ///< the largest hop of the tree, and one.
  bool relayed() const { return chain >= 0; }
  friend bool operator==(const RelayHop&, const RelayHop&) = default;
};

/// The expected cost of a plan on network interfaces. Bytes in one direction.
struct RelaySummary {
  bool used = false;        ///< replicas relay.
  Index direct_bytes = 0;   ///< over the busiest interface if none relays.
  Index busiest_bytes = 0;  ///< over the busiest interface.
  /// A lower bound of it for all plans: every byte leaves an interface of its holders, and enters
  /// each domain that lacks it, at least once.
  Index least_bytes = 0;
  std::int32_t hops = 0;  ///< the most sends of a byte one after another.
};

/// The trees of one set of ranks.
class RelayTree {
 public:
  struct Node {
    Rank rank;
    Rank parent;  ///< that sends to it; -1: a holder.
    std::int32_t hop = 0;
    Rank next[2];  ///< that it sends to; -1: none.
  };
  /// @pre `ranks` is not empty
  RelayTree(const RankSet& ranks, const RankPlaces& places);

  int stripes() const { return stripes_; }
  std::int32_t hops() const { return hops_; }
  /// The ranks of a stripe's tree, ascending.
  std::span<const Node> nodes(int stripe) const {
    return std::span(nodes_).subspan(static_cast<std::size_t>(stripe) * size_, size_);
  }
  /// @pre the tree has the rank
  const Node& node(int stripe, Rank r) const;
  /// The rank that gets the stripe from a holder.
  Rank first(int stripe) const { return first_[static_cast<std::size_t>(stripe)]; }

  /// Calls f(stripe, begin, end) for the stripes of bytes [from, to) that overlap [lo, hi).
  template <class F>
  void for_each_stripe(Index from, Index to, Index lo, Index hi, F&& f) const {
    for (int i = 0; i < stripes_; ++i) {
      const Index begin = std::max(lo, border(from, to, i)),
                  end = std::min(hi, border(from, to, i + 1));
      if (begin < end) f(i, begin, end);
    }
  }

 private:
  Index border(Index from, Index to, int stripe) const {
    const Index all = to - from, n = stripes_;
    return from + all / n * stripe + all % n * stripe / n;
  }
  void add_stripe(const std::vector<std::vector<Rank>>& domains, const RankPlaces& places,
                  int stripe);

  std::size_t size_ = 0;
  int stripes_ = 1;
  std::int32_t hops_ = 0;
  std::vector<Node> nodes_;  ///< by (stripe, rank).
  std::vector<Rank> first_;  ///< by stripe.
};

/// The domain and the interface of a rank.
std::int32_t domain_of(const RankPlaces& places, Rank r);
std::int32_t nic_of(const RankPlaces& places, Rank r);

/// The members of `wanting` that have no member of `holders` in their domain.
RankSet without_holder_nearby(const RankSet& wanting, const RankSet& holders,
                              const RankPlaces& places);

}  // namespace reshard
