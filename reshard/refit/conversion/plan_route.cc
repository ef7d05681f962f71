// SPDX-License-Identifier: Apache-2.0
#include "reshard/refit/conversion/plan_route.h"

#include <algorithm>

#include "reshard/program/converted/delivered_rows.h"

namespace reshard::conversion {
namespace {

/// The data, scale and factor slots of the pairs with these value slots, ascending.
std::vector<SlotId> stored_slots(const QuantisedLayout& layout, const std::vector<SlotId>& values) {
  std::vector<SlotId> slots;
  for (const QuantisedLayout::Pair& pair : layout.pairs) {
    if (!std::ranges::binary_search(values, pair.values)) continue;
    slots.push_back(pair.data);
    slots.push_back(pair.scales);
    if (pair.factor.value() >= 0) slots.push_back(pair.factor);
  }
  std::ranges::sort(slots);
  return slots;
}

class RoutePlanner {
 public:
  RoutePlanner(Route route, const std::vector<bool>& tensors, const SessionSide& source,
               const SessionSide& target, const Routes& routes)
      : route_(route), tensors_(tensors), source_(source), target_(target), routes_(routes) {}

  Result<std::vector<RoutePlan>> run() {
    if (route_ == Route::none) return std::move(out_);
    RESHARD_TRY(route_ == Route::quantise_between ? plan_both() : plan_one());
    for (const RoutePlan& plan : out_) RESHARD_TRY(check_delivered_areas(plan.into.conversion));
    return std::move(out_);
  }

 private:
  std::set<std::string> names() const {
    std::set<std::string> names;
    for (std::size_t i = 0; i < tensors_.size(); ++i)
      if (tensors_[i]) names.insert(source_.values()->model().tensors()[i].name);
    return names;
  }
  /// Canonical names of the tensors' data, scales and factors, as quantise_layout() names them.
  std::set<std::string> stored_names(const QuantisedLayout& layout) const {
    std::set<std::string> stored = names();
    for (const std::string& name : names()) {
      const QuantFormat& format = layout.choice.format_of(name);
      stored.insert(name + scale_suffix(format));
      if (format.tensor_factor) stored.insert(name + "_scale_2");
    }
    return stored;
  }
  std::vector<SlotId> values_of(const QuantisedLayout& layout) const {
    return value_slots(&layout, tensors_);
  }
  StagingTensors stored_of(const QuantisedLayout& layout) const {
    return {layout.stored, stored_slots(layout, values_of(layout))};
  }

  /// A side that quantises is planned as stored if it is the source, as values if it is the target;
  /// one that dequantises the other way.
  MoveSide converted(const QuantisedLayout& layout, bool is_target, bool quantises) const {
    MoveSide side{.values = quantises != is_target};
    side.conversion = {&layout, values_of(layout), quantises};
    if (is_target) side.conversion.delivers = tensors_;
    side.planned = quantises == is_target ? StagingTensors{layout.values, values_of(layout)}
                                          : stored_of(layout);
    return side;
  }

  Result<> add(const std::shared_ptr<const ModelLayout>& from,
               const std::shared_ptr<const ModelLayout>& into, std::set<std::string> only,
               MoveSide source, MoveSide target) {
    out_.push_back({route_,
                    RESHARD_TRY(Planner::make(from, into, {.ignore = {}, .only = std::move(only)})),
                    std::move(source), std::move(target)});
    return {};
  }

  Result<> plan_both() {
    const QuantisedLayout& between = *routes_.between;
    MoveSide into = converted(between, true, true), from{.values = false};
    into.between = from.between = std::make_shared<StagingTensors>(stored_of(between));
    RESHARD_TRY(add(source_.values(), between.values, names(), {}, std::move(into)));
    return add(between.stored, target_.stored(), stored_names(*target_.quantised), std::move(from),
               {.values = false});
  }

  /// The target quantises whole blocks, of which its shards have a part.
  Result<> plan_halo(MoveSide from) {
    const QuantisedLayout& halo = *routes_.halo;
    MoveSide into = converted(halo, true, true);
    Planner finish = RESHARD_TRY(Planner::make(
        halo.stored, target_.stored(), {.ignore = {}, .only = stored_names(*target_.quantised)}));
    into.finish = std::make_shared<const Planner>(std::move(finish));
    into.conversion.finish = into.finish.get();
    return add(source_.values(), halo.values, names(), std::move(from), std::move(into));
  }

  Result<> plan_one() {
    const auto &from = source_.values(), &into = target_.values();
    const auto stored = [] { return MoveSide{.values = false}; };
    switch (route_) {
      case Route::stored:
        return add(source_.stored(), target_.stored(), stored_names(*target_.quantised), stored(),
                   stored());
      case Route::quantise_at_sender:
        return add(routes_.sender->stored, target_.stored(), stored_names(*target_.quantised),
                   converted(*routes_.sender, false, true), stored());
      case Route::quantise_at_receiver:
        return add(from, into, names(), {}, converted(*target_.quantised, true, true));
      case Route::quantise_halo: return plan_halo({});
      case Route::dequantise_at_sender:
        return add(from, into, names(), converted(*source_.quantised, false, false), {});
      case Route::dequantise_at_receiver:
        return add(source_.stored(), routes_.receiver->stored, stored_names(*source_.quantised),
                   stored(), converted(*routes_.receiver, true, false));
      case Route::requantise:
        if (!value_slots(routes_.halo.get(), tensors_).empty())
          return plan_halo(converted(*source_.quantised, false, false));
        return add(from, into, names(), converted(*source_.quantised, false, false),
                   converted(*target_.quantised, true, true));
      default: return add(from, into, names(), {}, {});
    }
  }

  Route route_;
  const std::vector<bool>& tensors_;
  const SessionSide &source_, &target_;
  const Routes& routes_;
  std::vector<RoutePlan> out_;
};

}  // namespace

Result<std::vector<RoutePlan>> plan_route(Route route, const std::vector<bool>& tensors,
                                          const SessionSide& source, const SessionSide& target,
                                          const Routes& routes) {
  return RoutePlanner(route, tensors, source, target, routes).run();
}

}  // namespace reshard::conversion
