// SPDX-License-Identifier: Apache-2.0
#include "reshard/plan/planner.h"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "reshard/base/check.h"
#include "reshard/base/closest_name.h"
#include "reshard/base/hash.h"
#include "reshard/base/log/log.h"
#include "reshard/base/stopwatch.h"
#include "reshard/index/region.h"
#include "reshard/plan/planner_state.h"

namespace reshard {
namespace {

/// Changes whenever the same layouts get another plan.
constexpr int kPlanVersion = 1;

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

}  // namespace

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
  if (options.relays != nullptr) p.add_relays(*options.relays);
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
  std::map<std::tuple<ReplicaMap::ListId, ReplicaMap::ListId, int, bool>, PairId> known;
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
    // Relays send from their targets, so these must hold what travels.
    const bool relayable = options.relays != nullptr && wire_form(id) == target_->form(id);
    const auto [it, fresh] =
        known.try_emplace({from_->list(id), to_->list(id), element_bits(id), relayable},
                          PairId(static_cast<PairId::rep>(pieces_.size())));
    if (fresh) {
      relayable_.push_back(relayable);
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
      const SetId remote = sets_->intern((*sets_)[want.ranks] - (*sets_)[have.ranks]);
      pieces.push_back({box, box.volume() * width / 8, want.ranks, -1, have.ranks, remote, remote});
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
  supplies_.clear();
  demand_.clear();
  std::map<SetId, std::int32_t> supply_of;
  std::vector<std::map<SetId, Index>> wanted;  // per supply: bytes by set of demand
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
      wanted[static_cast<std::size_t>(piece.supply)][piece.demand] +=
          piece.bytes * tensors_of_pair_[p];
    }
  }
  const std::vector<Rank> all = ranks_.members();
  first_tree_ = all.empty() ? 0 : all.back().value() + 1;
  std::vector<Index> per_rank(static_cast<std::size_t>(first_tree_) + trees_.size());
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
  for (const RelayTree& tree : trees_)
    for (int i = 0; i < tree.stripes(); ++i)
      for (const RelayTree::Node& node : tree.nodes(i))
        d.add(i).add(node.rank.value()).add(node.parent.value());
  digest_ = d.value();
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
  state_->for_each_delivery(dst, f);
}
void Planner::for_each_delivered_bytes(Rank dst, const DeliveredBytes& f) const {
  state_->for_each_delivered_bytes(dst, f);
}
RankPlan Planner::rank_plan(Rank r) const { return state_->rank_plan(r); }
const std::optional<RelaySummary>& Planner::relays() const { return state_->relays(); }

}  // namespace reshard
