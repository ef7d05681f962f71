// SPDX-License-Identifier: Apache-2.0
// Every pair of ranks is one activity. A pair with messages begins once its first message is packed
// and has crossed the link, and ends once its last one is unpacked; in between, packing, sending
// and unpacking run side by side. A pair that relays begins once its first message has passed the
// pairs before it, which are taken to be as fast.
#include <algorithm>

#include "reshard/simulate/outcome.h"

namespace reshard {
namespace {

using simulate::ClusterLinks;
using simulate::FairShare;
using simulate::ResourceUse;
using simulate::UseList;

/// Up to this many pairs are simulated exactly; the rates of more are computed anew only after a
/// part of the bound has passed.
constexpr std::size_t kExactPairs = 1000, kManyPairs = 20'000, kHugePairs = 200'000;

class TrafficRun {
 public:
  TrafficRun(const ClusterSpec& cluster, const ClusterTraffic& traffic)
      : cluster_(cluster),
        traffic_(traffic),
        links_(cluster, traffic.ranks),
        load_(links_.rates().size()) {
    set_shares();
    for (const PairTraffic& pair : traffic.pairs) add(pair);
  }

  Simulation run();

 private:
  struct Pair {
    std::size_t first_use = 0, end_use = 0;
    double begin = 0, tail = 0;  ///< seconds: its first byte moves; after its last byte moved.
    double end = 0;
  };
  void set_shares();
  double slowest(const UseList& uses) const;
  void add(const PairTraffic& pair);
  void move_all();
  double batch_seconds() const;
  Simulation outcome() const;

  const ClusterSpec& cluster_;
  const ClusterTraffic& traffic_;
  ClusterLinks links_;
  simulate::Load load_;
  std::vector<double> packs_, unpacks_;  ///< per rank: copied bytes for a byte in messages.
  std::vector<ResourceUse> uses_;
  std::vector<Pair> pairs_;
  double start_ = 0;
};

void TrafficRun::set_shares() {
  const auto ranks = static_cast<std::size_t>(traffic_.ranks);
  std::vector<double> sent(ranks, 0), received(ranks, 0);
  for (const PairTraffic& p : traffic_.pairs) {
    if (p.messages == 0) {
      start_ = cluster_.messages.seconds_per_barrier;  // readers wait until sources are ready
      continue;
    }
    sent[p.from.index()] += static_cast<double>(p.bytes);
    received[p.to.index()] += static_cast<double>(p.bytes);
  }
  const auto share = [&](const std::vector<Index>& copied, const std::vector<double>& moved) {
    std::vector<double> shares(ranks, 0);
    for (std::size_t r = 0; r < ranks; ++r)
      if (moved[r] > 0) shares[r] = static_cast<double>(copied[r]) / moved[r];
    return shares;
  };
  packs_ = share(traffic_.packed, sent);
  unpacks_ = share(traffic_.unpacked, received);
}

/// The seconds of one unit alone.
double TrafficRun::slowest(const UseList& uses) const {
  double seconds = 0;
  for (const ResourceUse& use : uses.uses())
    seconds = std::max(seconds, use.weight / links_.rates()[use.resource]);
  return seconds;
}

void TrafficRun::add(const PairTraffic& p) {
  Pair pair;
  pair.begin = start_;
  UseList uses;
  const auto bytes = static_cast<double>(std::max<Index>(p.bytes, 1));
  const double copies = static_cast<double>(p.copies) / bytes;
  if (p.messages == 0) {
    links_.copy(p.to, 1, copies, uses);
    links_.read(p.from, p.to, 1, uses);
    if (p.from != p.to) pair.begin += links_.latency(p.from, p.to);
  } else {
    const auto messages = static_cast<double>(p.messages);
    links_.copy(p.from, packs_[p.from.index()], copies, uses);
    links_.copy(p.to, unpacks_[p.to.index()], copies, uses);
    links_.message(p.from, p.to, 1, messages / bytes, uses);
    const double rate = cluster_.copies.bytes_per_second;
    const double one = rate > 0 ? bytes / messages / rate : 0;  // to copy one message
    pair.begin += one * packs_[p.from.index()] + links_.latency(p.from, p.to);
    pair.tail = one * unpacks_[p.to.index()];
    pair.begin += static_cast<double>(p.before) *
                  (links_.latency(p.from, p.to) + bytes / messages * slowest(uses));
  }
  pair.first_use = uses_.size();
  uses_.insert(uses_.end(), uses.uses().begin(), uses.uses().end());
  pair.end_use = uses_.size();
  load_.add(uses.uses(), static_cast<double>(p.bytes));
  pairs_.push_back(pair);
}

double TrafficRun::batch_seconds() const {
  if (pairs_.size() <= kExactPairs) return 0;
  const double part = pairs_.size() <= kManyPairs   ? 0.001
                      : pairs_.size() <= kHugePairs ? 0.01
                                                    : 0.02;
  return load_.bound_seconds(links_) * part;
}

void TrafficRun::move_all() {
  std::vector<std::uint32_t> order(pairs_.size());
  for (std::uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, {}, [&](std::uint32_t i) { return pairs_[i].begin; });
  FairShare share(links_.rates());
  const double batch = batch_seconds();
  double now = 0;
  for (std::size_t next = 0; next < order.size() || !share.idle();) {
    if (share.idle()) now = std::max(now, pairs_[order[next]].begin);
    for (; next < order.size() && pairs_[order[next]].begin <= now + batch; ++next) {
      const Pair& pair = pairs_[order[next]];
      share.begin(order[next],
                  std::span(uses_).subspan(pair.first_use, pair.end_use - pair.first_use),
                  static_cast<double>(traffic_.pairs[order[next]].bytes));
    }
    double step = std::max(share.next(), batch);
    if (next < order.size()) step = std::min(step, pairs_[order[next]].begin - now);
    for (const auto& done : share.advance(step)) pairs_[done.id].end = now + done.after;
    now += step;
  }
}

Simulation TrafficRun::outcome() const {
  Simulation out;
  for (Rank::rep r = 0; r < traffic_.ranks; ++r) out.ranks.push_back({Rank(r), 0, 0});
  double last = start_;
  for (std::size_t i = 0; i < pairs_.size(); ++i) {
    const PairTraffic& p = traffic_.pairs[i];
    const double end = pairs_[i].end + pairs_[i].tail;
    const auto parts =
        static_cast<double>(p.messages > 0 ? p.messages : std::max(p.bytes >> 20, Index{1}));
    const double first = pairs_[i].begin + (pairs_[i].end - pairs_[i].begin) / parts;
    for (const Rank r : {p.from, p.to}) {
      RankSeconds& rank = out.ranks[r.index()];
      // A rank that is read does nothing itself.
      if (p.messages == 0 && r != p.to) continue;
      rank.first = rank.moved == 0 ? first : std::min(rank.first, first);
      rank.moved = std::max(rank.moved, end);
    }
    last = std::max(last, end);
  }
  out.predicted_seconds = last + cluster_.messages.seconds_per_barrier;
  load_.judge(links_, out);
  return out;
}

Simulation TrafficRun::run() {
  move_all();
  return outcome();
}

}  // namespace

Result<Simulation> simulate_traffic(const ClusterSpec& cluster, const ClusterTraffic& traffic) {
  RESHARD_TRY(check_cluster(cluster));
  RESHARD_TRY(check_places(cluster, traffic.ranks));
  return TrafficRun(cluster, traffic).run();
}

}  // namespace reshard
