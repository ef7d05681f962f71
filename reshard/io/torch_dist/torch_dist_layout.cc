// SPDX-License-Identifier: Apache-2.0
//
// Every parameter is one entry of a stored tensor: at its layer and its expert, if those are
// stacked. An entry is stored in pieces, each a run of its rows.
#include "reshard/io/torch_dist/torch_dist_layout.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "reshard/base/check.h"
#include "reshard/io/dcp/open_folder.h"
#include "reshard/io/torch_dist/megatron_names.h"
#include "reshard/io/torch_dist/parameter.h"
#include "reshard/model/config.h"
#include "reshard/model/explicit_slots.h"

namespace reshard::torch_dist {
namespace {

/// A parameter, or a run of its rows, in a stored tensor.
struct StackedEntry {
  Dims leading;
  Parameter parameter;
};

/// The parameters in each stored tensor, by the name of the tensor.
class StackedEntries {
 public:
  StackedEntries(const ModelLayout& layout, bool stacks) : stacks_(stacks) {
    const Rank r = layout.ranks().members().front();
    for (const SlotId id : layout.slots_of(r)) add(layout, id, r);
  }

  const std::map<std::string, std::vector<StackedEntry>>& tensors() const { return tensors_; }
  /// In the order of the layout.
  const std::vector<std::string>& names() const { return names_; }
  /// The shape of the leading dimensions of a tensor.
  Dims leading_shape(const std::string& name) const {
    Dims shape = tensors_.at(name).front().leading;
    for (const StackedEntry& entry : tensors_.at(name))
      for (int i = 0; i < shape.size(); ++i) shape[i] = std::max(shape[i], entry.leading[i]);
    for (int i = 0; i < shape.size(); ++i) ++shape[i];
    return shape;
  }

 private:
  void add(const ModelLayout& layout, SlotId id, Rank r) {
    const Parameter parameter = parameter_of(layout, id, r);
    for (const std::string& name : names_of(parameter.slot->name)) {
      const auto ends = row_split_of(name);
      const auto& sections = parameter.slot->sections;
      if (ends.empty()) add_as(name, parameter);
      RESHARD_CHECK(ends.empty() || ends.size() == sections.size());
      Index begin = 0;
      for (std::size_t i = 0; i < ends.size(); ++i) {
        const Index end = begin + sections[i].extent[0];
        add_as(name + std::string(ends[i]), rows_of(parameter, begin, end));
        begin = end;
      }
    }
  }

  void add_as(const std::string& name, Parameter parameter) {
    const auto expert = without_expert(name);
    StackedPlace place = expert ? *expert : StackedPlace{name, {}};
    if (auto stacked = stacks_ ? without_layer(place.tensor) : std::nullopt) {
      for (const Index i : place.leading) stacked->leading.push_back(i);
      place = *std::move(stacked);
    }
    const auto [at, fresh] = tensors_.try_emplace(place.tensor);
    if (fresh) names_.push_back(place.tensor);
    at->second.push_back({place.leading, std::move(parameter)});
  }

  bool stacks_;
  std::map<std::string, std::vector<StackedEntry>> tensors_;
  std::vector<std::string> names_;
};

bool is_split(const std::string& parameter) {
  return std::ranges::any_of(names_of(parameter),
                             [](const auto& name) { return !row_split_of(name).empty(); });
}

/// Whether the layers of the decoder have the same parameters, each stored whole.
bool layers_are_alike(const ModelLayout& layout) {
  std::map<Index, std::set<std::string>> layers;
  const Rank r = layout.ranks().members().front();
  for (const SlotId id : layout.slots_of(r)) {
    const std::string& name = layout.slot(id).name;
    const auto place = without_layer(name);
    if (!place) continue;
    if (is_split(name)) return false;
    layers[place->leading[0]].insert(place->tensor + to_string(layout.local_shape(id, r)));
  }
  return std::ranges::all_of(
      layers, [&](const auto& layer) { return layer.second == layers.begin()->second; });
}

/// The objects beside a module's weights: nothing is in them, but modules ask for them.
class ExtraStates {
 public:
  explicit ExtraStates(TensorPieces& out) : out_(out) {}

  void add_module(const std::string& tensor, const Dims& leading, const Dims& shape) {
    constexpr std::string_view kWeight = ".weight", kProjection = ".self_attention.linear_proj";
    const std::size_t end = tensor.rfind(kWeight);
    if (end == std::string::npos) return;
    const std::string module = tensor.substr(0, end);
    add(module, leading, shape);
    if (!module.ends_with(kProjection)) return;
    const std::size_t attention = module.size() - kProjection.size();
    add(module.substr(0, attention) + ".self_attention.core_attention", leading, shape);
  }

 private:
  void add(const std::string& module, const Dims& leading, const Dims& shape) {
    const bool stacked = leading.size() > 0;
    const std::string name = fmt::format("{}._extra_state/shard_{}_{}", module,
                                         stacked ? fmt::format("{}", fmt::join(leading, ".")) : "0",
                                         stacked ? fmt::format("{}", fmt::join(shape, ".")) : "1");
    if (known_.insert(name).second) out_.others.push_back({name});
  }

  TensorPieces& out_;
  std::set<std::string> known_;
};

/// Cuts the entries into the pieces of ranks.
class Cutter {
 public:
  Cutter(const StackedEntries& entries, Index ranks, ExplicitSlots& slots)
      : entries_(entries), ranks_(ranks), slots_(slots), states_(out_) {}

  TensorPieces cut() && {
    for (const std::string& name : entries_.names()) {
      const auto& entries = entries_.tensors().at(name);
      const Dims leading = entries_.leading_shape(name);
      TensorSpec tensor{name, entries.front().parameter.slot->dtype, leading};
      for (const Index n : entries.front().parameter.shape) tensor.shape.push_back(n);
      out_.tensors.push_back(std::move(tensor));
      for (const StackedEntry& entry : entries) {
        states_.add_module(name, entry.leading, leading);
        cut(entry);
      }
    }
    return std::move(out_);
  }

 private:
  void cut(const StackedEntry& entry) {
    const Parameter& parameter = entry.parameter;
    if (volume(parameter.shape) == 0) return;
    if (const auto expert = without_expert(parameter.slot->name))
      return add(expert->leading[0] % ranks_, entry.leading, parameter, 0);
    if (parameter.shape.size() < 2) return add(0, entry.leading, parameter, 0);
    const Index rows = parameter.shape[0], each = (rows + ranks_ - 1) / ranks_;
    for (Index r = 0; r * each < rows; ++r)
      add(r, entry.leading, rows_of(parameter, r * each, std::min(rows, (r + 1) * each)), r * each);
  }

  /// Adds rows, from `begin` of their entry, of the last tensor.
  void add(Index rank, const Dims& leading, const Parameter& rows, Index begin) {
    const TensorSpec& tensor = out_.tensors.back();
    Dims shape = Dims::filled(leading.size(), 1), offsets = leading;
    for (int i = 0; i < rows.shape.size(); ++i) {
      shape.push_back(rows.shape[i]);
      offsets.push_back(i == 0 ? begin : 0);
    }
    TensorPiece piece{"", out_.tensors.size() - 1, shift(Box::whole(shape), offsets), shape};
    for (int i = 0; i < shape.size(); ++i) piece.order[i] = i;
    piece.local = dcp::piece_name(tensor, piece.box);
    ExplicitTensor local{.name = piece.local, .dtype = tensor.dtype, .shape = shape};
    local.padded = rows.slot->padded;
    local.map = rows.slot->map;
    local.casts = rows.slot->casts;
    const Dims origin = Dims::filled(leading.size(), 0);
    for (const PlacedBox& part : rows.parts) local.parts.push_back(stacked(part, origin));
    const auto r = static_cast<Rank::rep>(rank);
    slots_.add(RankSet::range(r, r + 1), std::move(local));
    out_.pieces.push_back(std::move(piece));
  }

  const StackedEntries& entries_;
  Index ranks_;
  ExplicitSlots& slots_;
  TensorPieces out_;
  ExtraStates states_;
};

/// The same options in the words of the family megatron.
Result<LayoutSpec> megatron_spec(const LayoutSpec& spec, const ModelConfig& config) {
  LayoutSpec out = RESHARD_TRY(parse_layout("megatron"));
  for (const char* key : {"dtype", "gamma", "mtp", "vocab_multiple"})
    if (const auto value = spec.keys.find(key); value != spec.keys.end()) out.keys.insert(*value);
  return with_explicit_defaults(out, config);
}

}  // namespace

Result<TorchDist> torch_dist_layout(const LayoutSpec& spec, const FamilyInput& input) {
  RESHARD_TRY(spec.check_keys({"shard", "layers", "dtype", "gamma", "mtp", "vocab_multiple"}));
  const Index ranks = RESHARD_TRY(spec.integer("shard", 1));
  const std::string layers = RESHARD_TRY(spec.one_of("layers", {"auto", "stacked", "single"}));
  RESHARD_CHECK(input.config != nullptr);
  const LayoutSpec parameters = RESHARD_TRY(megatron_spec(spec, *input.config));
  const ModelLayout whole = RESHARD_TRY(megatron_layout(parameters, input));
  RESHARD_TRY(check_parameters(whole));
  const bool alike = layers_are_alike(whole);
  if (layers == "stacked" && !alike)
    return fail(Code::unsupported,
                "layers=stacked: the layers of the decoder differ, or have mixers, which Megatron "
                "stores one by one");
  const StackedEntries entries(whole, alike && layers != "single");
  LayoutBuilder builder(to_string(spec), input.model);
  ExplicitSlots slots(builder);
  slots.add_ranks(RankSet::range(0, static_cast<Rank::rep>(ranks)));
  TorchDist out;
  out.content = std::make_shared<const TensorPieces>(Cutter(entries, ranks, slots).cut());
  slots.finish();
  for (Index t = 0; t < whole.model().size(); ++t)
    if (const TensorId id(static_cast<TensorId::rep>(t)); whole.omits(id)) builder.omit(id);
  out.layout = std::make_shared<const ModelLayout>(RESHARD_TRY(std::move(builder).finish()));
  return out;
}

}  // namespace reshard::torch_dist
