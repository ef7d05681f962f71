// SPDX-License-Identifier: Apache-2.0
#include "reshard/convert/conversion_routes.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/transform/quantise.h"

namespace reshard {
namespace {

struct Spoken {
  Route route;
  const char *name, *how;
};
constexpr Spoken kRoutes[] = {
    {Route::plain, "plain", "as they are"},
    {Route::stored, "stored", "data and scales as they are"},
    {Route::quantise_at_sender, "quantise_at_sender", "quantised by the sender"},
    {Route::quantise_at_receiver, "quantise_at_receiver", "quantised by the receiver"},
    {Route::quantise_halo, "quantise_halo", "quantised by the receiver, in whole blocks"},
    {Route::quantise_between, "quantise_between", "quantised where they are whole"},
    {Route::dequantise_at_sender, "dequantise_at_sender", "dequantised by the sender"},
    {Route::dequantise_at_receiver, "dequantise_at_receiver", "dequantised by the receiver"},
    {Route::requantise, "requantise", "dequantised, then quantised anew (loses precision)"},
};

/// Bytes of one copy of a tensor as a side stores it.
Index stored_bytes(const LayoutSide& side, TensorId id) {
  const CanonicalTensor& t = side.values->model()[id];
  const Index elements = volume(t.shape);
  if (!side.quantised || !side.quantised->choice.tensors.contains(t.name))
    return elements * bits(side.values->form(id).dtype) / 8;
  // As it is stored: the input of input-first tensors is last, dimensions that are merged are one.
  const ModelSpec& stored = side.quantised->stored->model();
  const QuantFormat& f = side.quantised->choice.format_of(t.name);
  const Dims shape = stored[*stored.find(t.name)].stored_shape();
  const int n = shape.size();
  const Index rows = shape[n - 2], cols = shape[n - 1];
  const Index matrices = elements / std::max<Index>(1, rows * cols);
  const Index factors = f.tensor_factor ? matrices * bits(DType::f32) / 8 : 0;
  return elements * bits(f.data) / 8 + matrices * scale_bytes(f, rows, cols) + factors;
}

Result<Routes> routes_of(const LayoutSide& from, const LayoutSide& to, const Planner& planner,
                         ConversionSide convert) {
  std::vector<bool> moves;
  for (Index i = 0; i < planner.source().model().size(); ++i)
    moves.push_back(planner.moves(TensorId(static_cast<TensorId::rep>(i))));
  return find_routes(session_side(from), session_side(to), moves, convert);
}

Result<Routes> routes_of(const LayoutPair& pair, ConversionSide convert) {
  return routes_of(pair.from, pair.to, *pair.planner, convert);
}

}  // namespace

std::string_view name(Route route) {
  for (const Spoken& spoken : kRoutes)
    if (spoken.route == route) return spoken.name;
  return "none";
}

std::string_view in_words(Route route) {
  for (const Spoken& spoken : kRoutes)
    if (spoken.route == route) return spoken.how;
  return "not moved";
}

Result<std::vector<bool>> moved_as_stored(const LayoutPair& pair, ConversionSide convert) {
  const Routes routes = RESHARD_TRY(routes_of(pair, convert));
  std::vector<bool> as_stored;
  for (const Route route : routes.of) as_stored.push_back(route == Route::stored);
  return as_stored;
}

Result<std::vector<ConversionRow>> conversion_rows(const LayoutPair& pair, ConversionSide convert) {
  const ModelSpec& model = pair.source->model();
  const Routes routes = RESHARD_TRY(routes_of(pair, convert));
  std::vector<ConversionRow> rows;
  for (const Spoken& spoken : kRoutes) {
    ConversionRow row{.route = spoken.name, .how = spoken.how, .example = {}};
    for (Index i = 0; i < model.size(); ++i) {
      const TensorId id(static_cast<TensorId::rep>(i));
      if (routes.of[id.index()] != spoken.route) continue;
      if (row.tensors++ == 0) row.example = model[id].name;
      row.bytes_from += stored_bytes(pair.from, id);
      row.bytes_to += stored_bytes(pair.to, id);
    }
    if (row.tensors > 0) rows.push_back(std::move(row));
  }
  return rows;
}

Result<StoredPart> stored_part(const LayoutSide& from, const LayoutSide& to,
                               const Planner& values) {
  StoredPart part;
  if (!from.quantised || !to.quantised) return part;
  const auto routes = routes_of(from, to, values, ConversionSide::receiver);
  if (!routes) {
    for (const std::string& name : to.quantised->choice.tensors)
      part.requantised += from.quantised->choice.tensors.contains(name) ? 1 : 0;
    return part;
  }
  std::vector<bool> as_stored;
  for (const Route route : routes->of) {
    as_stored.push_back(route == Route::stored);
    part.requantised += route == Route::requantise ? 1 : 0;
  }
  PlanOptions options;
  for (const QuantisedLayout::Pair& pair : to.quantised->pairs)
    for (const SlotId slot : {pair.data, pair.scales, pair.factor}) {
      if (slot.value() < 0) continue;
      const auto& sections = to.quantised->values->slot(pair.values).sections;
      if (!as_stored[sections[0].parts[0].tensor.index()]) continue;
      for (const Section& section : to.stored()->slot(slot).sections)
        for (const PlacedBox& p : section.parts)
          options.only.insert(to.stored()->model()[p.tensor].name);
    }
  if (options.only.empty()) return part;
  part.planner = std::make_shared<const Planner>(
      RESHARD_TRY(Planner::make(from.stored(), to.stored(), options)));
  return part;
}

}  // namespace reshard
