// SPDX-License-Identifier: Apache-2.0
// Tensors that share a local tensor, on any side and in any form, take the same route, because a
// conversion needs the whole local tensor. So every rule applies to such a group as a whole.
#include "reshard/refit/conversion/routes.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/model/quant/whole_blocks.h"
#include "reshard/plan/waves.h"

namespace reshard {
namespace {

/// Calls f(tensor) for each canonical tensor of a slot of `values`.
template <class F>
void for_each_tensor(const ModelLayout& values, SlotId slot, F&& f) {
  for (const Section& section : values.slot(slot).sections)
    for (const PlacedBox& part : section.parts) f(part.tensor);
}

/// The properties common to all pairs of a tensor in a quantised layout.
struct Facts {
  bool chosen = false, exact = true, whole = true;
};

/// The facts of each tensor, by TensorId. If `layout` is null, no tensor is chosen.
std::vector<Facts> facts_of(const QuantisedLayout* layout, std::size_t num_tensors) {
  std::vector<Facts> facts(num_tensors);
  if (layout == nullptr) return facts;
  for (const QuantisedLayout::Pair& pair : layout->pairs)
    for_each_tensor(*layout->values, pair.values, [&](TensorId id) {
      Facts& f = facts[id.index()];
      f.chosen = true;
      f.exact &= pair.exact;
      f.whole &= pair.whole;
    });
  return facts;
}

/// `values` quantised in the format of `like`, on the canonical tensors' block grid, so that it has
/// the canonical tensors of like.stored. Null if its local tensors cannot be quantised so.
std::shared_ptr<const QuantisedLayout> in_form_of(
    const QuantisedLayout& like, const std::shared_ptr<const ModelLayout>& values) {
  QuantChoice choice = like.choice;
  choice.grid = BlockGrid::tensor;
  choice.format.order = ScaleOrder::rows;
  for (auto& [tensor, format] : choice.others) format.order = ScaleOrder::rows;
  auto made = quantise_layout(values, std::move(choice));
  if (!made || made->stored->model().digest() != like.stored->model().digest()) return nullptr;
  return std::make_shared<const QuantisedLayout>(*std::move(made));
}

/// Quantises a layout of values as `like` is, on the canonical tensors' block grid.
Result<std::shared_ptr<const QuantisedLayout>> on_tensor_grid(
    const QuantisedLayout& like, std::shared_ptr<const ModelLayout> values) {
  QuantChoice choice = like.choice;
  choice.grid = BlockGrid::tensor;
  return std::make_shared<const QuantisedLayout>(
      RESHARD_TRY(quantise_layout(std::move(values), std::move(choice))));
}

class Router {
 public:
  Router(const SessionSide& source, const SessionSide& target, const std::vector<bool>& moves,
         ConversionSide convert)
      : source_(source),
        target_(target),
        moves_(moves),
        convert_(convert),
        model_(source.values()->model()) {
    out_.of.assign(moves.size(), Route::none);
    if (target.quantised != nullptr) out_.sender = in_form_of(*target.quantised, source.values());
    if (source.quantised != nullptr) out_.receiver = in_form_of(*source.quantised, target.values());
    from_ = facts_of(source.quantised.get(), moves.size());
    to_ = facts_of(target.quantised.get(), moves.size());
    sent_ = facts_of(out_.sender.get(), moves.size());
    same_ =
        source.quantised != nullptr && target.quantised != nullptr &&
        source.quantised->choice.format == target.quantised->choice.format &&
        source.quantised->choice.others == target.quantised->choice.others &&
        source.quantised->stored->model().digest() == target.quantised->stored->model().digest();
  }

  Result<Routes> run() {
    for (std::size_t i = 0; i < moves_.size(); ++i)
      if (moves_[i]) out_.of[i] = Route::plain;
    std::vector<StagedSlots> sides;
    for (const QuantisedLayout* layout :
         {source_.quantised.get(), target_.quantised.get(), out_.sender.get(), out_.receiver.get()})
      if (layout != nullptr) sides.push_back({layout->values, value_slots(layout, moves_)});
    for (const auto& group : waves_of(sides, 0)) RESHARD_TRY(route(group));
    for (std::size_t i = 0; i < moves_.size(); ++i) count(out_.of[i]);
    RESHARD_TRY(make_whole());
    if (!uses(Route::quantise_at_sender)) out_.sender = nullptr;
    if (!uses(Route::dequantise_at_receiver)) out_.receiver = nullptr;
    return std::move(out_);
  }

 private:
  using TensorGroup = std::vector<TensorId>;

  bool uses(Route route) const { return std::ranges::find(out_.of, route) != out_.of.end(); }
  template <class Predicate>
  static bool all(const TensorGroup& group, const std::vector<Facts>& facts, Predicate predicate) {
    return std::ranges::all_of(group, [&](TensorId id) { return predicate(facts[id.index()]); });
  }

  Result<> route(const TensorGroup& all_of_it) {
    TensorGroup group;
    for (const TensorId id : all_of_it)
      if (moves_[id.index()]) group.push_back(id);
    if (group.empty()) return {};
    const auto chosen = [](const Facts& f) { return f.chosen; };
    const auto free = [](const Facts& f) { return !f.chosen; };
    const bool from = all(group, from_, chosen), to = all(group, to_, chosen);
    if ((!from && !all(group, from_, free)) || (!to && !all(group, to_, free)))
      return fail(
          Code::unsupported,
          fmt::format("tensor '{}' shares a local tensor with '{}', and only one of the two "
                      "is quantised on both sides; choose both or none",
                      model_[group.front()].name, model_[group.back()].name));
    const Route route = RESHARD_TRY(route_of(group, from, to));
    for (const TensorId id : group) out_.of[id.index()] = route;
    return {};
  }

  Result<Route> route_of(const TensorGroup& group, bool from, bool to) {
    const auto exact = [](const Facts& f) { return f.exact; };
    const auto whole = [](const Facts& f) { return f.whole; };
    if (from && to) {
      if (same_ && all(group, from_, exact) && all(group, to_, exact)) return Route::stored;
      return Route::requantise;
    }
    if (from) {
      const bool receiver = out_.receiver != nullptr && all(group, from_, exact);
      const bool there = receiver && convert_ == ConversionSide::receiver;
      return there ? Route::dequantise_at_receiver : Route::dequantise_at_sender;
    }
    if (!to) return Route::plain;
    const bool fits = out_.sender != nullptr && all(group, to_, exact);
    const bool sender = fits && all(group, sent_, whole), receiver = all(group, to_, whole);
    if (sender && (convert_ == ConversionSide::sender || !receiver))
      return Route::quantise_at_sender;
    if (convert_ == ConversionSide::sender)
      out_.counts.fell_back += static_cast<Index>(group.size());
    return receiver ? Route::quantise_at_receiver : route_of_cut(group);
  }

  /// The route that gives ranks fewer bytes.
  Route route_of_cut(const TensorGroup& group) const {
    WholeBlockBytes all;
    for (const TensorId id : group) {
      const WholeBlockBytes one = whole_block_bytes(*target_.quantised, id);
      all.halo += one.halo;
      all.between += one.between;
    }
    return all.halo <= all.between ? Route::quantise_halo : Route::quantise_between;
  }

  void count(Route route) {
    switch (route) {
      case Route::none: return;
      case Route::plain:
      case Route::stored: ++out_.counts.direct; return;
      case Route::quantise_at_sender:
      case Route::dequantise_at_sender: ++out_.counts.at_sender; return;
      case Route::quantise_between: ++out_.counts.between; return;
      case Route::quantise_at_receiver:
      case Route::quantise_halo:
      case Route::dequantise_at_receiver:
      case Route::requantise: ++out_.counts.at_receiver; return;
    }
  }

  /// Makes the layouts of tensors whose blocks the target's shards cut. Tensors of one route share
  /// a layout.
  Result<> make_whole() {
    bool cuts = false;
    for (std::size_t i = 0; i < moves_.size(); ++i)
      cuts |= out_.of[i] == Route::requantise && !to_[i].whole;
    std::vector<bool> halo, between;
    for (const Route route : out_.of) {
      halo.push_back(route == Route::quantise_halo || (cuts && route == Route::requantise));
      between.push_back(route == Route::quantise_between);
    }
    const QuantisedLayout* target = target_.quantised.get();
    if (cuts || uses(Route::quantise_halo)) {
      auto blocks = RESHARD_TRY(whole_blocks(*target, halo));
      out_.halo = RESHARD_TRY(on_tensor_grid(*target, std::move(blocks)));
    }
    if (uses(Route::quantise_between)) {
      auto matrices = RESHARD_TRY(whole_tensors(*target, between));
      out_.between = RESHARD_TRY(on_tensor_grid(*target, std::move(matrices)));
    }
    return {};
  }

  const SessionSide &source_, &target_;
  const std::vector<bool>& moves_;
  ConversionSide convert_;
  const ModelSpec& model_;
  std::vector<Facts> from_, to_, sent_;
  bool same_ = false;
  Routes out_;
};

}  // namespace

std::vector<SlotId> value_slots(const QuantisedLayout* layout, const std::vector<bool>& tensors) {
  std::vector<SlotId> slots;
  if (layout == nullptr) return slots;
  for (const QuantisedLayout::Pair& pair : layout->pairs) {
    bool any = false;
    for_each_tensor(*layout->values, pair.values, [&](TensorId id) { any |= tensors[id.index()]; });
    if (any) slots.push_back(pair.values);
  }
  return slots;
}

Result<Routes> find_routes(const SessionSide& source, const SessionSide& target,
                           const std::vector<bool>& moves, ConversionSide convert) {
  return Router(source, target, moves, convert).run();
}

}  // namespace reshard
