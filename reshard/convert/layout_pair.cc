// SPDX-License-Identifier: Apache-2.0
#include "reshard/convert/layout_pair.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/base/closest_name.h"
#include "reshard/base/number_text.h"
#include "reshard/base/stopwatch.h"
#include "reshard/io/checkpoint/model_storage.h"
#include "reshard/io/checkpoint/stored_model.h"
#include "reshard/io/layout_side.h"
#include "reshard/io/make_layout.h"

namespace reshard {
namespace {

std::string note(const char* what, const QuantisedLayout& q) {
  return fmt::format("{} {} ({}), such as '{}'", what,
                     plural(static_cast<Index>(q.choice.tensors.size()), "tensor"),
                     to_string(q.choice),
                     q.choice.tensors.empty() ? "" : *q.choice.tensors.begin());
}

/// True if all scales belong to blocks of the canonical tensors. @pre side.quantised
bool is_exact(const LayoutSide& side) {
  return std::all_of(side.quantised->pairs.begin(), side.quantised->pairs.end(),
                     [](const QuantisedLayout::Pair& pair) { return pair.exact; });
}

/// False if a checkpoint's weights must be quantised, or quantised anew, to become those of the
/// side.
Result<bool> weights_are_stored_as(const LayoutSide& side, const Model& model) {
  if (!model.weights) return true;
  const LayoutSide own = RESHARD_TRY(own_side(model));
  return own.stored()->model().digest() == side.stored()->model().digest();
}

/// Ignores calibrated KV-cache scales that only the target has: a trainer has none. Returns the
/// note about them, or empty.
std::string leave_cache_scales(LayoutPair& pair) {
  const ModelSpec& model = pair.source->model();
  std::string first;
  Index count = 0;
  for (Index i = 0; i < model.size(); ++i) {
    const TensorId id(static_cast<TensorId::rep>(i));
    if (!is_cache_scale(model[id]) || !pair.source->parts_of(id).empty() ||
        pair.target->parts_of(id).empty())
      continue;
    if (count++ == 0) first = model[id].name;
    pair.ignore.insert(model[id].name);
  }
  if (count == 0) return "";
  return fmt::format("{} keeps its own {} of KV caches, which {} does not hold, such as '{}'",
                     pair.target->name(), plural(count, "scale"), pair.source->name(), first);
}

}  // namespace

bool moves_as_stored(const LayoutSide& from, const LayoutSide& to) {
  if (!from.quantised && !to.quantised) return true;
  return from.quantised && to.quantised &&
         stored_alike(from.quantised->choice.format, to.quantised->choice.format) &&
         from.quantised->choice.others == to.quantised->choice.others &&
         from.stored()->model().digest() == to.stored()->model().digest() && is_exact(from) &&
         is_exact(to);
}

Result<LayoutSide> make_target(const std::string& text, const Model& model,
                               const LayoutSide& from) {
  if (split_joined(text).size() > 1) return make_side(text, model);
  const LayoutSpec spec = RESHARD_TRY(read_layout_text(text));
  if (from.quantised && leaves_grid_open(spec)) {
    auto side = make_side(text, model, "", BlockGrid::tensor);
    if (side && moves_as_stored(from, *side)) return side;
  }
  return make_side(text, model);
}

std::string requantised_note(const LayoutSide& from, const LayoutSide& to, Index tensors) {
  if (tensors == 0) return "";
  const QuantChoice &have = from.quantised->choice, &want = to.quantised->choice;
  std::string why = "not the same tensors are quantised on both sides";
  if (!stored_alike(have.format, want.format) || have.others != want.others)
    why = fmt::format("from {} to {}", to_string(have), to_string(want));
  else if (!is_exact(from))
    why = "the source's ranks counted blocks from their own pieces";
  else if (!is_exact(to))
    why =
        "the target's ranks count blocks from their own pieces; with quant_grid=tensor they "
        "would move as they are";
  return fmt::format("{} dequantised and quantised anew, which loses precision: {}",
                     plural(tensors, "tensor"), why);
}

namespace {

/// The number of weights that adapters change, and of those that they replace.
std::vector<std::string> merge_notes(const Model& model) {
  std::vector<std::string> notes;
  for (const bool replaced : {false, true}) {
    const auto is = [&](const auto& entry) {
      const MergedWeight& weight = entry.second;
      return replaced ? weight.is_replaced : !weight.values.changes.empty();
    };
    const auto first = std::ranges::find_if(model.storage->merged, is);
    if (first == model.storage->merged.end()) continue;
    const Index count = std::ranges::count_if(model.storage->merged, is);
    notes.push_back(fmt::format("{} {}, such as '{}'", plural(count, "tensor"),
                                replaced ? "replaced by those of adapters" : "merged with adapters",
                                first->first));
  }
  return notes;
}

}  // namespace

std::vector<std::string> notes_of(const Model& model, const LayoutSide& from,
                                  const LayoutSide& to) {
  std::vector<std::string> notes;
  if (!model.config && !model.config_path.empty())
    notes.push_back(fmt::format("config not understood: {}", model.no_config));
  for (const LayoutSide* side : {&from, &to})
    for (const std::string& note : side->notes)
      notes.push_back(side->stored()->name() + " " + note);
  if (to.as_codes)
    notes.push_back(
        fmt::format("moves codes, scales and zero points of {} ({}), such as '{}'",
                    plural(static_cast<Index>(model.storage->codes->weights.size()), "tensor"),
                    model.storage->codes->text, model.storage->codes->weights.begin()->first));
  else if (!model.storage->decoded.empty())
    notes.push_back(fmt::format("{} decoded from {}, such as '{}'",
                                plural(static_cast<Index>(model.storage->decoded.size()), "tensor"),
                                model.storage->decoded_from,
                                model.storage->decoded.begin()->first));
  for (std::string& text : merge_notes(model)) notes.push_back(std::move(text));
  if (moves_as_stored(from, to) && to.quantised)
    notes.push_back(note("moves data and scales of", *to.quantised));
  return notes;
}

std::vector<std::string> quantisation_notes(const LayoutSide& from, const LayoutSide& to,
                                            const Planner& planner) {
  std::vector<std::string> notes;
  const auto add = [&](const LayoutSide& side, const LayoutSide& other, const char* how) {
    if (!side.quantised) return;
    const QuantChoice& choice = side.quantised->choice;
    Index count = 0;
    std::string first;
    for (const std::string& name : choice.tensors) {
      const auto id = planner.source().model().find(name);
      if (!id || !planner.moves(*id)) continue;
      if (other.quantised && other.quantised->choice.tensors.contains(name)) continue;
      if (count++ == 0) first = name;
    }
    if (count == 0) return;
    notes.push_back(fmt::format("{} {}{}, such as '{}'", plural(count, "tensor"),
                                fmt::format(fmt::runtime(how), to_string(choice)),
                                &side == &to ? " (loses precision)" : "", first));
  };
  add(from, to, "dequantised from {}");
  add(to, from, "quantised to {}");
  return notes;
}

Result<> check_forms(const Model& model, const LayoutSide& source, const LayoutSide& target) {
  if (source.as_codes == target.as_codes) return {};
  const std::string& form = model.storage->codes->form;
  const std::string codes = (source.as_codes ? source : target).stored()->name();
  return fail(Code::unsupported,
              source.as_codes
                  ? fmt::format("{} holds codes, which are decoded from whole files only: give the "
                                "target quant={}, or convert to hf:quant={} and that to {}",
                                codes, form, form, target.stored()->name())
                  : fmt::format("{} holds codes, which are moved, not made: the source must hold "
                                "them too, with quant={}",
                                codes, form));
}

Result<LayoutPair> pair_sides(const Model& model, const LayoutSide& source,
                              const LayoutSide& target, const PairOptions& options) {
  RESHARD_TRY(check_forms(model, source, target));
  LayoutPair pair;
  const bool as_stored = moves_as_stored(source, target);
  pair.notes = notes_of(model, source, target);
  const bool plain =
      as_stored && (!options.filled || RESHARD_TRY(weights_are_stored_as(source, model)));
  pair.from = plain ? LayoutSide{source.stored()} : source;
  pair.to = plain ? LayoutSide{target.stored()} : target;
  pair.source = pair.from.values;
  pair.target = pair.to.values;
  const ModelSpec& tensors = pair.source->model();
  pair.ignore = RESHARD_TRY(names_of(options.ignore, "ignore", tensors));
  pair.ignore.merge(matching_names(tensors, model.ignore));
  if (auto note = leave_cache_scales(pair); !note.empty()) pair.notes.push_back(std::move(note));
  const Stopwatch planning;
  pair.only = RESHARD_TRY(names_of(options.only, "move", tensors));
  const bool converts = pair.from.quantised || pair.to.quantised;
  if (options.relays != nullptr && converts)
    pair.notes.emplace_back("routes are direct: ranks do not relay what is converted on the way");
  const PlanOptions plan{pair.ignore, pair.only, converts ? nullptr : options.relays};
  pair.planner =
      std::make_shared<const Planner>(RESHARD_TRY(Planner::make(pair.source, pair.target, plan)));
  pair.planner_seconds = planning.seconds();
  return pair;
}

Result<LayoutPair> make_layout_pair(const Model& model, const std::string& from,
                                    const std::string& to, const PairOptions& options) {
  const Stopwatch layouts;
  const LayoutSide source = RESHARD_TRY(make_side(from, model));
  const LayoutSide target = RESHARD_TRY(make_target(to, model, source));
  std::set<std::string> lacked = source.lacked;
  lacked.insert(target.lacked.begin(), target.lacked.end());
  RESHARD_TRY(check_ignored(model, nullptr, lacked));
  const double layout_seconds = layouts.seconds();
  auto pair = RESHARD_TRY(pair_sides(model, source, target, options));
  pair.layout_seconds = layout_seconds;
  return pair;
}

SessionSide session_side(const LayoutSide& side) {
  if (side.quantised) return {.quantised = side.quantised};
  return {.layout = side.values};
}

}  // namespace reshard
