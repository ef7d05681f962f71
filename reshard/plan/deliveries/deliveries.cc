// SPDX-License-Identifier: Apache-2.0
// The transfers of one rank, found from the cuts of the lines alone.
#include <algorithm>
#include <map>
#include <utility>

#include "reshard/plan/deliveries/slices.h"
#include "reshard/plan/planner_state.h"

namespace reshard {

using deliveries::Slices;

namespace {

/// Calls f(rank, begin, end) for each entry of a line that overlaps [begin, end), clipped to it.
template <class Entry, class F>
void for_each_overlap(const std::vector<Entry>& line, Index line_end, Index begin, Index end,
                      F&& f) {
  auto it = std::upper_bound(line.begin(), line.end(), begin,
                             [](Index x, const Entry& e) { return x < e.begin; });
  for (it = it == line.begin() ? it : it - 1; it != line.end() && it->begin < end; ++it) {
    const Index stop = it + 1 == line.end() ? line_end : (it + 1)->begin;
    const Index lo = std::max(begin, it->begin), hi = std::min(end, stop);
    if (lo < hi) f(it->rank, lo, hi);
  }
}

bool by_peer(Rank a_peer, const Transfer& a, Rank b_peer, const Transfer& b) {
  if (a_peer != b_peer) return a_peer < b_peer;
  if (a.relay.chain != b.relay.chain) return a.relay.chain < b.relay.chain;
  if (a.tensor != b.tensor) return a.tensor < b.tensor;
  return before(a.box, b.box);
}

}  // namespace

/// Some slices of a piece that a rank gets, from itself or another.
struct Planner::State::Delivery {
  TensorId tensor;
  Rank src;
  const Slices& slices;
  Interval range;
  RelayHop relay = {};
  const RelayTree::Node* node = nullptr;  ///< of the receiver; null: not relayed.
};

/// The bytes of one supply that a rank gets, alone or with others of a tree.
struct Planner::State::Line {
  std::size_t supply;
  Rank on_line;  ///< the rank, or the tree.
  Interval whole;
  Index at;  ///< position of the next piece.
};

struct Planner::State::Wanted {
  const Piece* piece;
  Slices slices;
  Index line;  ///< -1: held by the rank itself.
};

/// The pieces that a rank wants, by pair; and their lines.
std::vector<std::vector<Planner::State::Wanted>> Planner::State::wanted_by(
    Rank dst, std::vector<Line>& lines) const {
  std::map<std::pair<std::int32_t, Rank>, Index> line_of;
  const auto line = [&](const Piece& piece) {
    const bool alone = piece.tree < 0 || (*sets_)[piece.demand].contains(dst);
    const Rank on = alone ? dst : on_line(piece.tree);
    const auto [it, fresh] =
        line_of.try_emplace({piece.supply, on}, static_cast<Index>(lines.size()));
    if (fresh) {
      const auto s = static_cast<std::size_t>(piece.supply);
      const Interval whole = demand_[s].range_of(on);
      lines.push_back({s, on, whole, whole.begin()});
    }
    return it->second;
  };
  std::vector<std::vector<Wanted>> out(pieces_.size());
  for (std::size_t p = 0; p < pieces_.size(); ++p)
    for (const Piece& piece : pieces_[p]) {
      if (!(*sets_)[piece.wanting].contains(dst)) continue;
      const bool held = piece.supply < 0 || (*sets_)[piece.holders].contains(dst);
      out[p].push_back({&piece, Slices(piece.box, piece.bytes), held ? -1 : line(piece)});
    }
  return out;
}

template <class F>
void Planner::State::visit_deliveries(Rank dst, F&& f) const {
  if (!target_->ranks().contains(dst)) return;
  std::vector<Line> lines;
  const auto mine = wanted_by(dst, lines);
  for (std::size_t t = 0; t < pair_of_.size(); ++t) {
    if (pair_of_[t].value() < 0) continue;
    const TensorId tensor(static_cast<TensorId::rep>(t));
    for (const auto& [piece, slices, which] : mine[pair_of_[t].index()]) {
      if (which < 0) {
        f(Delivery{tensor, dst, slices, slices.range(0, piece->bytes)});
        continue;
      }
      Line& line = lines[static_cast<std::size_t>(which)];
      const Index begin = line.at;
      line.at += piece->bytes;
      const auto deliver = [&](Rank src, Index lo, Index hi, const RelayHop& relay,
                               const RelayTree::Node* node) {
        const Interval range = slices.range(lo - begin, hi - begin);
        if (!range.empty()) f(Delivery{tensor, src, slices, range, relay, node});
      };
      for_each_overlap(balance_.shares[line.supply], supplies_[line.supply].bytes, begin, line.at,
                       [&](Rank holder, Index lo, Index hi) {
                         if (!is_tree(line.on_line)) return deliver(holder, lo, hi, {}, nullptr);
                         const RelayTree& tree = tree_of(line.on_line);
                         tree.for_each_stripe(line.whole.begin(), line.whole.end(), lo, hi,
                                              [&](int stripe, Index from, Index to) {
                                                const auto& node = tree.node(stripe, dst);
                                                const Index chain = chain_of(
                                                    line.supply, line.on_line, holder, stripe);
                                                deliver(node.hop == 0 ? holder : node.parent, from,
                                                        to, {chain, node.hop, tree.hops()}, &node);
                                              });
                       });
    }
  }
}

void Planner::State::for_each_delivery(Rank dst,
                                       const std::function<void(const Transfer&)>& f) const {
  visit_deliveries(
      dst, [&](const Delivery& d) { f({d.tensor, d.src, dst, d.slices.box(d.range), d.relay}); });
}

void Planner::State::for_each_delivered_bytes(Rank dst, const DeliveredBytes& f) const {
  visit_deliveries(dst, [&](const Delivery& d) { f(d.src, d.slices.bytes(d.range), d.relay); });
}

/// A supply that a rank has a share of, with the destinations that receive from this share.
struct Planner::State::SendContext {
  Index begin = 0, end = 0;  ///< the rank's share of the line.
  std::size_t supply = 0;
  struct To {
    Rank rank;  ///< or a tree.
    Interval whole;
    Index at;  ///< position of the destination's next piece on the line.
  };
  std::vector<To> to;
};

void Planner::State::add_sends(Rank r, std::vector<Transfer>& out) const {
  std::map<std::int32_t, SendContext> contexts;
  for (std::size_t s = 0; s < supplies_.size(); ++s) {
    const auto& shares = balance_.shares[s];
    const auto it = std::find_if(shares.begin(), shares.end(),
                                 [&](const Balance::Share& x) { return x.rank == r; });
    if (it == shares.end()) continue;
    SendContext context{
        it->begin, it + 1 == shares.end() ? supplies_[s].bytes : (it + 1)->begin, s, {}};
    demand_[s].for_each_overlap(context.begin, context.end, [&](Rank to, Index begin, Index end) {
      context.to.push_back({to, Interval{begin, end}, begin});
    });
    contexts.emplace(static_cast<std::int32_t>(s), std::move(context));
  }
  struct Mine {
    const Piece* piece;
    SendContext* context;
    std::vector<std::size_t> to;  // indices into context->to
  };
  std::vector<std::vector<Mine>> mine(pieces_.size());
  for (std::size_t p = 0; p < pieces_.size(); ++p) {
    for (const Piece& piece : pieces_[p]) {
      const auto it = contexts.find(piece.supply);
      if (piece.supply < 0 || it == contexts.end()) continue;
      Mine m{&piece, &it->second, {}};
      for (std::size_t i = 0; i < it->second.to.size(); ++i)
        if ((*sets_)[piece.demand].contains(it->second.to[i].rank)) m.to.push_back(i);
      if (!m.to.empty()) mine[p].push_back(std::move(m));
    }
  }
  for (std::size_t t = 0; t < pair_of_.size(); ++t) {
    if (pair_of_[t].value() < 0) continue;
    for (const Mine& m : mine[pair_of_[t].index()]) {
      for (std::size_t i : m.to) {
        auto& to = m.context->to[i];
        const Index begin = to.at, end = to.at += m.piece->bytes;
        const Index lo = std::max(begin, m.context->begin), hi = std::min(end, m.context->end);
        if (lo >= hi) continue;
        const Slices slices(m.piece->box, m.piece->bytes);
        const auto send = [&](Rank dst, Index from, Index until, const RelayHop& relay) {
          const Interval range = slices.range(from - begin, until - begin);
          if (!range.empty())
            out.push_back(
                {TensorId(static_cast<TensorId::rep>(t)), r, dst, slices.box(range), relay});
        };
        if (!is_tree(to.rank)) {
          send(to.rank, lo, hi, {});
          continue;
        }
        const RelayTree& tree = tree_of(to.rank);
        tree.for_each_stripe(to.whole.begin(), to.whole.end(), lo, hi,
                             [&](int stripe, Index from, Index until) {
                               const Index chain = chain_of(m.context->supply, to.rank, r, stripe);
                               send(tree.first(stripe), from, until, {chain, 0, tree.hops()});
                             });
      }
    }
  }
}

RankPlan Planner::State::rank_plan(Rank r) const {
  RankPlan plan{r, {}, {}, {}};
  visit_deliveries(r, [&](const Delivery& d) {
    const Transfer t{d.tensor, d.src, r, d.slices.box(d.range), d.relay};
    (t.src == r ? plan.locals : plan.recvs).push_back(t);
    if (d.node == nullptr) return;
    for (const Rank next : d.node->next)
      if (next.value() >= 0)
        plan.sends.push_back(
            {t.tensor, r, next, t.box, {t.relay.chain, t.relay.hop + 1, t.relay.hops}});
  });
  add_sends(r, plan.sends);
  std::sort(plan.sends.begin(), plan.sends.end(),
            [](const Transfer& a, const Transfer& b) { return by_peer(a.dst, a, b.dst, b); });
  std::sort(plan.recvs.begin(), plan.recvs.end(),
            [](const Transfer& a, const Transfer& b) { return by_peer(a.src, a, b.src, b); });
  return plan;
}

}  // namespace reshard
