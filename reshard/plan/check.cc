// SPDX-License-Identifier: Apache-2.0
#include "reshard/plan/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "reshard/index/region.h"

namespace reshard {
namespace {

/// The region of each canonical tensor that the rank holds.
std::map<TensorId, Region> held_by(const ModelLayout& layout, Rank r) {
  std::map<TensorId, Region> out;
  for (SlotId slot : layout.slots_of(r))
    for (const Fragment& f : layout.local(slot, r).fragments) out[f.tensor].add(f.box);
  return out;
}

bool holds(const ModelLayout& layout, TensorId tensor, Rank r, const Box& box) {
  for (const auto& part_id : layout.parts_of(tensor))
    if (const auto f = layout.fragment(part_id, r); f && contains(f->box, box)) return true;
  return false;
}

bool holds_some(const std::map<TensorId, Region>& held, const Transfer& t) {
  const auto it = held.find(t.tensor);
  if (it == held.end()) return false;
  for (const Box& b : it->second.boxes())
    if (!intersect(b, t.box).empty()) return true;
  return false;
}

class Checker {
 public:
  Checker(const Planner& planner, const RankPlan& plan, const std::set<std::string>& ignored,
          const std::set<std::string>& only)
      : p_(planner),
        plan_(plan),
        ignored_(ignored),
        only_(only),
        held_(held_by(planner.source(), plan.rank)) {}

  Result<> run() {
    for (const Transfer& t : plan_.sends) {
      if (t.src != plan_.rank || t.dst == plan_.rank || !held_by_sender(t))
        return wrong(t, "is sent by a rank that does not hold it");
      if (t.relay.hop > 0 && !received(t)) return wrong(t, "is relayed but not received before");
    }
    for (const auto* list : {&plan_.recvs, &plan_.locals}) {
      for (const Transfer& t : *list) {
        const bool local = list == &plan_.locals;
        if (t.dst != plan_.rank || (t.src == t.dst) != local)
          return wrong(t, "is in the wrong list");
        if (!held_by_sender(t) || (local && t.relay.relayed()))
          return wrong(t, "comes from a rank that does not hold it");
        if (!local && holds_some(held_, t))
          return wrong(t, "comes from another rank although this rank holds part of it");
        RESHARD_TRY(deliver(t));
      }
    }
    return compare(held_by(p_.target(), plan_.rank));
  }

 private:
  tl::unexpected<Error> wrong(const Transfer& t, const char* what) const {
    return fail(Code::corrupt,
                fmt::format("plan of rank {}: {} of '{}' ({} -> {}) {}", plan_.rank.value(),
                            to_string(t.box), p_.source().model()[t.tensor].name, t.src.value(),
                            t.dst.value(), what));
  }

  /// A relay sends from its target.
  bool held_by_sender(const Transfer& t) const {
    return holds(t.relay.hop > 0 ? p_.target() : p_.source(), t.tensor, t.src, t.box);
  }
  /// True if the rank gets exactly this box one hop before.
  bool received(const Transfer& t) const {
    return std::ranges::any_of(plan_.recvs, [&](const Transfer& r) {
      return r.tensor == t.tensor && r.box == t.box && r.relay.chain == t.relay.chain &&
             r.relay.hop + 1 == t.relay.hop && r.relay.hops == t.relay.hops;
    });
  }

  Result<> deliver(const Transfer& t) {
    auto& boxes = delivered_[t.tensor];
    for (const Box& b : boxes)
      if (!intersect(b, t.box).empty()) return wrong(t, "is delivered twice");
    boxes.push_back(t.box);
    return {};
  }

  bool asked_for(const std::string& name) const { return only_.empty() || only_.contains(name); }

  Result<> compare(const std::map<TensorId, Region>& wanted) const {
    for (const auto& [tensor, region] : wanted) {
      const std::string& name = p_.source().model()[tensor].name;
      if (ignored_.contains(name) || !asked_for(name)) continue;
      Region missing = region;
      const auto it = delivered_.find(tensor);
      if (it != delivered_.end())
        for (const Box& b : it->second) missing.subtract(b);
      if (!missing.empty())
        return fail(Code::corrupt,
                    fmt::format("plan of rank {}: {} of '{}' is not delivered", plan_.rank.value(),
                                to_string(missing.boxes()[0]), name));
    }
    for (const auto& [tensor, boxes] : delivered_)
      for (const Box& b : boxes)
        if (!wanted.contains(tensor) || !asked_for(p_.source().model()[tensor].name) ||
            !same_points(intersect(Region(b), wanted.at(tensor)), Region(b)))
          return wrong({tensor, plan_.rank, plan_.rank, b}, "is delivered but not needed");
    return {};
  }

  const Planner& p_;
  const RankPlan& plan_;
  const std::set<std::string>&ignored_, &only_;
  std::map<TensorId, Region> held_;
  std::map<TensorId, std::vector<Box>> delivered_;
};

}  // namespace

Result<> check_rank_plan(const Planner& planner, const RankPlan& plan,
                         const std::set<std::string>& ignored, const std::set<std::string>& only) {
  return Checker(planner, plan, ignored, only).run();
}

}  // namespace reshard
