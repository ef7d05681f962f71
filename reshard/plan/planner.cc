// SPDX-License-Identifier: Apache-2.0
// Terms. A piece is the intersection of a source cell and a destination cell. A supply is a set of
// source ranks (the holders) with all bytes that only they hold and other ranks want. The bytes of
// a supply are on one line: destination ranks ascending, and the pieces of each rank in the order
// (tensor, piece). The balance cuts the line into one share per holder. A holder sends to a
// destination what lies in both the holder's share and the destination's part of the line, so any
// rank finds its own transfers from two cuts of one line.
#include "reshard/plan/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "reshard/base/check.h"
#include "reshard/base/closest_name.h"
#include "reshard/base/hash.h"
#include "reshard/base/int128.h"
#include "reshard/base/log/log.h"
#include "reshard/base/stopwatch.h"
#include "reshard/index/region.h"
#include "reshard/plan/balance.h"
#include "reshard/plan/demand_line.h"
#include "reshard/plan/replica_map.h"

namespace reshard {
namespace {

/// Changes whenever the same layouts get another plan.
constexpr int kPlanVersion = 1;

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

/// Cuts a box at slices of its first dimension that has more than one index.
///
/// A byte position of the box's row-major bytes is mapped to the nearest slice boundary, so
/// consecutive byte ranges become consecutive, disjoint sub-boxes that cover the box. Sub-byte
/// elements are cut only at whole bytes.
class Slices {
 public:
  /// @pre the box is not empty, has that many bytes, and outlives this
  Slices(const Box& box, Index bytes);
  /// The slices of the byte range [begin, end) of the box; may be empty. @pre 0 <= begin <= end <=
  /// bytes of the box
  Interval range(Index begin, Index end) const { return {border(begin), border(end)}; }
  Box box(Interval slices) const;
  Index bytes(Interval slices) const { return slices.size() * slice_bits_ / 8; }

 private:
  Index border(Index byte) const;
  const Box* box_;
  int dim_ = 0;
  Index count_ = 1, granule_ = 1, bytes_ = 0, slice_bits_ = 0;
};

Slices::Slices(const Box& box, Index bytes) : box_(&box), bytes_(bytes), slice_bits_(bytes * 8) {
  while (dim_ + 1 < box.rank() && box[dim_].size() == 1) ++dim_;
  if (box.rank() == 0) return;
  count_ = box[dim_].size();
  slice_bits_ /= count_;
  granule_ = 8 / std::gcd(slice_bits_, Index{8});
}

Index Slices::border(Index byte) const {
  if (byte == 0) return 0;
  if (byte == bytes_) return count_;
  // The nearest multiple of the granule to byte * count / bytes; halves go up.
  const Int128 unit = Int128{bytes_} * granule_;
  const auto nearest =
      static_cast<Index>((2 * Int128{byte} * count_ + unit) / (2 * unit)) * granule_;
  return std::min(nearest, count_);
}

Box Slices::box(Interval slices) const {
  if (slices.size() == count_) return *box_;
  if (box_->rank() == 0) return Box{Interval{}};
  return box_->with(dim_, shift(slices, (*box_)[dim_].begin()));
}

/// Errors: a name that the model lacks, which may be misspelt.
Result<> find_all(const std::set<std::string>& names, const char* what, const ModelSpec& model) {
  for (const std::string& name : names) {
    if (model.find(name)) continue;
    std::vector<std::string_view> known;
    for (const CanonicalTensor& t : model.tensors()) known.emplace_back(t.name);
    return fail(Code::not_found, fmt::format("tensor '{}' is {} but not in the model{}", name, what,
                                             did_you_mean(name, known)));
  }
  return {};
}

bool by_peer(Rank a_peer, const Transfer& a, Rank b_peer, const Transfer& b) {
  if (a_peer != b_peer) return a_peer < b_peer;
  if (a.tensor != b.tensor) return a.tensor < b.tensor;
  return before(a.box, b.box);
}

}  // namespace

/// The immutable content of a planner.
class Planner::State {
 public:
  static Result<std::unique_ptr<const State>> make(std::shared_ptr<const ModelLayout> source,
                                                   std::shared_ptr<const ModelLayout> target,
                                                   const PlanOptions& options);

  const std::shared_ptr<const ModelLayout>& source() const { return source_; }
  const std::shared_ptr<const ModelLayout>& target() const { return target_; }
  const RankSet& ranks() const { return ranks_; }
  bool moves(TensorId id) const { return pair_of_[id.index()].value() >= 0; }
  StoredForm wire_form(TensorId id) const;
  int element_bits(TensorId id) const { return bits(wire_form(id).dtype); }
  Index optimal_max() const { return balance_.optimal_max; }
  Index min_transfers() const;
  std::uint64_t digest() const { return digest_; }

  /// Calls f(tensor, source, slices of a piece, range of slices) for each delivery to `dst`.
  template <class F>
  void visit_deliveries(Rank dst, F&& f) const;
  void add_sends(Rank r, std::vector<Transfer>& out) const;

 private:
  /// The intersection of a source cell and a destination cell.
  struct Piece {
    Box box;
    Index bytes = 0;
    SetId wanting;  ///< all destination ranks.
    std::int32_t supply = -1;
    SetId holders, remote;  ///< source ranks; destination ranks that do not hold the piece.
  };
  /// Identifies the pieces of all tensors with the same source list, destination list and element
  /// size.
  using PairId = StrongInt<struct PairTag>;
  struct SendContext;

  Result<> pair_tensors(const PlanOptions& options);
  Result<std::vector<Piece>> intersect_cells(TensorId tensor, ReplicaMap::ListId from,
                                             ReplicaMap::ListId to);
  void find_demand();
  void make_digest(const PlanOptions& options);

  std::shared_ptr<const ModelLayout> source_, target_;
  RankSet ranks_;
  std::unique_ptr<RankSets> sets_;
  std::unique_ptr<ReplicaMap> from_, to_;
  std::vector<PairId> pair_of_;             ///< per tensor; -1 if it does not move.
  std::vector<std::vector<Piece>> pieces_;  ///< per pair.
  std::vector<Index> tensors_of_pair_;      ///< per pair: number of tensors.
  std::vector<Supply> supplies_;
  std::vector<DemandLine> demand_;  ///< per supply.
  Balance balance_;
  std::uint64_t digest_ = 0;
};

Result<std::unique_ptr<const Planner::State>> Planner::State::make(
    std::shared_ptr<const ModelLayout> source, std::shared_ptr<const ModelLayout> target,
    const PlanOptions& options) {
  RESHARD_CHECK(source->model().digest() == target->model().digest());
  auto made = std::make_unique<State>();
  State& p = *made;
  p.ranks_ = source->ranks() | target->ranks();
  if (p.ranks_.size() > kMaxPlanRanks)
    return fail(Code::unsupported,
                fmt::format("{} and {} have {} ranks together; at most {} are supported",
                            source->name(), target->name(), p.ranks_.size(), kMaxPlanRanks));
  p.sets_ = std::make_unique<RankSets>();
  p.from_ = std::make_unique<ReplicaMap>(*source, *p.sets_);
  p.to_ = std::make_unique<ReplicaMap>(*target, *p.sets_);
  p.source_ = std::move(source);
  p.target_ = std::move(target);
  RESHARD_TRY(p.pair_tensors(options));
  p.find_demand();
  p.balance_ = balance(p.supplies_);
  p.make_digest(options);
  return made;
}

Index Planner::State::min_transfers() const {
  Index all = 0;
  for (std::size_t p = 0; p < pieces_.size(); ++p) {
    Index of_a_tensor = 0;
    for (const Piece& piece : pieces_[p]) of_a_tensor += (*sets_)[piece.wanting].size();
    all += of_a_tensor * tensors_of_pair_[p];
  }
  return all;
}

StoredForm Planner::State::wire_form(TensorId id) const {
  const StoredForm from = source_->form(id), to = target_->form(id);
  return bits(from.dtype) < bits(to.dtype) ? from : to;
}

Result<> Planner::State::pair_tensors(const PlanOptions& options) {
  const ModelSpec& model = source_->model();
  RESHARD_TRY(find_all(options.only, "selected", model));
  RESHARD_TRY(find_all(options.ignore, "ignored", model));
  std::map<std::tuple<ReplicaMap::ListId, ReplicaMap::ListId, int>, PairId> known;
  pair_of_.reserve(static_cast<std::size_t>(model.size()));
  for (Index t = 0; t < model.size(); ++t) {
    const TensorId id(static_cast<TensorId::rep>(t));
    const CanonicalTensor& tensor = model[id];
    const bool held = !from_->cells(from_->list(id)).empty(),
               wanted = !to_->cells(to_->list(id)).empty();
    const bool left_out = (!wanted && target_->omits(id)) ||
                          (!options.only.empty() && !options.only.contains(tensor.name));
    if (volume(tensor.shape) == 0 || (held != wanted && options.ignore.contains(tensor.name)) ||
        (!held && !wanted) || left_out) {
      pair_of_.push_back(PairId(-1));
      continue;
    }
    if (!held)
      return fail(Code::not_found,
                  fmt::format("tensor '{}' is needed by {} but no rank of {} holds it", tensor.name,
                              target_->name(), source_->name()));
    if (!wanted)
      return fail(
          Code::not_found,
          fmt::format("tensor '{}' is in {} but not in {}; list it as ignored if this is intended",
                      tensor.name, source_->name(), target_->name()));
    const auto [it, fresh] = known.try_emplace({from_->list(id), to_->list(id), element_bits(id)},
                                               PairId(static_cast<PairId::rep>(pieces_.size())));
    if (fresh) {
      pieces_.push_back(RESHARD_TRY(intersect_cells(id, from_->list(id), to_->list(id))));
      tensors_of_pair_.push_back(0);
    }
    ++tensors_of_pair_[it->second.index()];
    pair_of_.push_back(it->second);
  }
  return {};
}

Result<std::vector<Planner::State::Piece>> Planner::State::intersect_cells(TensorId tensor,
                                                                           ReplicaMap::ListId from,
                                                                           ReplicaMap::ListId to) {
  const int width = element_bits(tensor);
  std::vector<Piece> pieces;
  for (const Cell& want : to_->cells(to)) {
    Index covered = 0;
    for (const Cell& have : from_->cells(from)) {
      const Box box = intersect(want.box, have.box);
      if (box.empty()) continue;
      covered += box.volume();
      const RankSet remote = (*sets_)[want.ranks] - (*sets_)[have.ranks];
      pieces.push_back(
          {box, box.volume() * width / 8, want.ranks, -1, have.ranks, sets_->intern(remote)});
      if (box.volume() * width % 8 != 0)
        return fail(Code::unsupported,
                    fmt::format("tensor '{}': piece {} of {}-bit elements is not whole bytes",
                                source_->model()[tensor].name, to_string(box), width));
    }
    if (covered == want.box.volume()) continue;
    Region missing(want.box);
    for (const Cell& have : from_->cells(from)) missing.subtract(have.box);
    return fail(Code::not_found,
                fmt::format("tensor '{}': {} needs {} but no rank of {} holds {}",
                            source_->model()[tensor].name, target_->name(), to_string(want.box),
                            source_->name(), to_string(missing.boxes()[0])));
  }
  return pieces;
}

void Planner::State::find_demand() {
  std::map<SetId, std::int32_t> supply_of;
  std::vector<std::map<SetId, Index>> wanted;  // per supply: bytes by set of remote ranks
  for (std::size_t p = 0; p < pieces_.size(); ++p) {
    for (Piece& piece : pieces_[p]) {
      if ((*sets_)[piece.remote].empty()) continue;
      const auto [it, fresh] =
          supply_of.try_emplace(piece.holders, static_cast<std::int32_t>(supplies_.size()));
      if (fresh) {
        supplies_.push_back({(*sets_)[piece.holders], 0});
        wanted.emplace_back();
      }
      piece.supply = it->second;
      wanted[static_cast<std::size_t>(piece.supply)][piece.remote] +=
          piece.bytes * tensors_of_pair_[p];
    }
  }
  const std::vector<Rank> all = ranks_.members();
  std::vector<Index> per_rank(all.empty() ? 0 : all.back().index() + 1);
  for (std::size_t s = 0; s < supplies_.size(); ++s) {
    std::vector<std::pair<const RankSet*, Index>> sets;
    for (const auto& [set, bytes] : wanted[s]) sets.emplace_back(&(*sets_)[set], bytes);
    demand_.emplace_back(sets, per_rank);
    supplies_[s].bytes = demand_.back().bytes();
  }
}

void Planner::State::make_digest(const PlanOptions& options) {
  Digest d;
  d.add(kPlanVersion).add(source_->digest()).add(target_->digest()).add(options.ignore.size());
  for (const std::string& name : options.ignore) d.add(name);
  d.add(options.only.size());
  for (const std::string& name : options.only) d.add(name);
  for (std::size_t s = 0; s < supplies_.size(); ++s)
    for (const auto& share : balance_.shares[s]) d.add(share.rank.value()).add(share.begin);
  digest_ = d.value();
}

template <class F>
void Planner::State::visit_deliveries(Rank dst, F&& f) const {
  if (!target_->ranks().contains(dst)) return;
  struct Mine {
    const Piece* piece;
    Slices slices;
    bool held;  ///< by dst itself.
  };
  std::vector<Index> at(supplies_.size(), -1);  // this rank's position on each supply's line
  std::vector<std::vector<Mine>> mine(pieces_.size());
  for (std::size_t p = 0; p < pieces_.size(); ++p)
    for (const Piece& piece : pieces_[p])
      if ((*sets_)[piece.wanting].contains(dst))
        mine[p].push_back({&piece, Slices(piece.box, piece.bytes),
                           piece.supply < 0 || (*sets_)[piece.holders].contains(dst)});
  for (std::size_t t = 0; t < pair_of_.size(); ++t) {
    if (pair_of_[t].value() < 0) continue;
    const TensorId tensor(static_cast<TensorId::rep>(t));
    for (const auto& [piece, slices, held] : mine[pair_of_[t].index()]) {
      if (held) {
        f(tensor, dst, slices, slices.range(0, piece->bytes));
        continue;
      }
      const auto s = static_cast<std::size_t>(piece->supply);
      if (at[s] < 0) at[s] = demand_[s].begin_of(dst);
      const Index begin = at[s];
      at[s] += piece->bytes;
      for_each_overlap(balance_.shares[s], supplies_[s].bytes, begin, at[s],
                       [&](Rank src, Index lo, Index hi) {
                         const Interval range = slices.range(lo - begin, hi - begin);
                         if (!range.empty()) f(tensor, src, slices, range);
                       });
    }
  }
}

/// A supply that a rank has a share of, with the destinations that receive from this share.
struct Planner::State::SendContext {
  Index begin = 0, end = 0;  ///< the rank's share of the line.
  struct To {
    Rank rank;
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
        it->begin, it + 1 == shares.end() ? supplies_[s].bytes : (it + 1)->begin, {}};
    demand_[s].for_each_overlap(context.begin, context.end,
                                [&](Rank to, Index begin) { context.to.push_back({to, begin}); });
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
        if ((*sets_)[piece.remote].contains(it->second.to[i].rank)) m.to.push_back(i);
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
        const Interval range = slices.range(lo - begin, hi - begin);
        if (!range.empty())
          out.push_back({TensorId(static_cast<TensorId::rep>(t)), r, to.rank, slices.box(range)});
      }
    }
  }
}

Result<Planner> Planner::make(std::shared_ptr<const ModelLayout> source,
                              std::shared_ptr<const ModelLayout> target, PlanOptions options) {
  const Stopwatch clock;
  Planner planner(RESHARD_TRY(State::make(std::move(source), std::move(target), options)));
  log_event(LogLevel::info, "plan", {}, [&] {
    return fmt::format("planned {} -> {}: {} ranks, digest {}, in {:.3g} s",
                       planner.source().name(), planner.target().name(), planner.ranks().size(),
                       hex(planner.digest()), clock.seconds());
  });
  return planner;
}

Planner::Planner(std::unique_ptr<const State> state) : state_(std::move(state)) {}
Planner::Planner(Planner&&) noexcept = default;
Planner& Planner::operator=(Planner&&) noexcept = default;
Planner::~Planner() = default;

const std::shared_ptr<const ModelLayout>& Planner::shared_source() const {
  return state_->source();
}
const std::shared_ptr<const ModelLayout>& Planner::shared_target() const {
  return state_->target();
}
bool Planner::moves(TensorId id) const { return state_->moves(id); }
StoredForm Planner::wire_form(TensorId id) const { return state_->wire_form(id); }
Index Planner::min_transfers() const { return state_->min_transfers(); }
const RankSet& Planner::ranks() const { return state_->ranks(); }
Index Planner::optimal_max_egress_bytes() const { return state_->optimal_max(); }
std::uint64_t Planner::digest() const { return state_->digest(); }

void Planner::for_each_delivery(Rank dst, const std::function<void(const Transfer&)>& f) const {
  state_->visit_deliveries(dst, [&](TensorId tensor, Rank src, const Slices& slices,
                                    Interval range) { f({tensor, src, dst, slices.box(range)}); });
}

void Planner::for_each_delivered_bytes(Rank dst, const std::function<void(Rank, Index)>& f) const {
  state_->visit_deliveries(dst, [&](TensorId, Rank src, const Slices& slices, Interval range) {
    f(src, slices.bytes(range));
  });
}

RankPlan Planner::rank_plan(Rank r) const {
  RankPlan plan{r, {}, {}, {}};
  for_each_delivery(
      r, [&](const Transfer& t) { (t.src == r ? plan.locals : plan.recvs).push_back(t); });
  state_->add_sends(r, plan.sends);
  std::sort(plan.sends.begin(), plan.sends.end(),
            [](const Transfer& a, const Transfer& b) { return by_peer(a.dst, a, b.dst, b); });
  std::sort(plan.recvs.begin(), plan.recvs.end(),
            [](const Transfer& a, const Transfer& b) { return by_peer(a.src, a, b.src, b); });
  return plan;
}

}  // namespace reshard
