// SPDX-License-Identifier: Apache-2.0
//
// A stored tensor has the dimensions [layers] [experts] of those that it stacks, then those of one
// parameter. A piece of it is a box: for each layer and expert in it, the same box of a parameter,
// which cuts each canonical box that the parameter is composed of.
#include "reshard/io/dcp/megatron_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <set>

#include "reshard/io/files/json.h"
#include "reshard/model/canonical.h"
#include "reshard/model/explicit_slots.h"
#include "reshard/model/families.h"

namespace reshard::dcp {
namespace {

constexpr std::string_view kEmbedding = "embedding.word_embeddings.weight", kLayers = "layers.";

/// Where a parameter is in a checkpoint: a tensor, and its place in the leading dimensions.
struct StackedPlace {
  std::string tensor;
  Dims leading;
};

/// "decoder.layers.3.mlp.linear_fc1.weight" -> "decoder.layers.mlp.linear_fc1.weight", 3; none
/// without a layer.
std::optional<StackedPlace> without_layer(const std::string& name) {
  const std::size_t at = name.find(kLayers);
  if (at == std::string::npos) return std::nullopt;
  const std::size_t begin = at + kLayers.size(), end = name.find('.', begin);
  Index layer = 0;
  if (end == std::string::npos ||
      std::from_chars(name.data() + begin, name.data() + end, layer).ptr != name.data() + end)
    return std::nullopt;
  return StackedPlace{name.substr(0, begin) + name.substr(end + 1), {layer}};
}

/// "X.mlp.experts.linear_fc1.weight7" -> "X.mlp.experts.experts.linear_fc1.weight", 7; none if it
/// is no expert's.
std::optional<StackedPlace> without_expert(const std::string& name) {
  constexpr std::string_view kExperts = ".experts.";
  const std::size_t at = name.find(kExperts);
  const std::size_t digits = name.find_last_not_of("0123456789") + 1;
  if (at == std::string::npos || digits == name.size()) return std::nullopt;
  Index expert = 0;
  std::from_chars(name.data() + digits, name.data() + name.size(), expert);
  const std::size_t end = at + kExperts.size();
  return StackedPlace{name.substr(0, end) + "experts." + name.substr(end, digits - end), {expert}};
}

/// The names of a parameter: a norm is a module of its own or part of the matrix that follows it.
std::vector<std::string> names_of(const std::string& parameter) {
  using Pair = std::array<std::string_view, 2>;
  constexpr std::array kNorms = {
      Pair{".pre_mlp_layernorm.", ".mlp.linear_fc1.layer_norm_"},
      Pair{".input_layernorm.", ".self_attention.linear_qkv.layer_norm_"},
      Pair{".self_attention.q_layernorm.", ".self_attention.linear_q_up_proj.layer_norm_"},
      Pair{".self_attention.kv_layernorm.", ".self_attention.linear_kv_up_proj.layer_norm_"},
  };
  std::vector<std::string> out = {parameter};
  for (const Pair& pair : kNorms)
    for (const auto& [from, to] : {pair, Pair{pair[1], pair[0]}})
      if (const std::size_t at = parameter.find(from); at != std::string::npos)
        out.push_back(std::string(parameter).replace(at, from.size(), to));
  return out;
}

/// The places where a parameter can be: layers stacked or not.
std::vector<StackedPlace> places_of(const std::string& parameter) {
  std::vector<StackedPlace> out;
  for (const std::string& name : names_of(parameter)) {
    const auto expert = without_expert(name);
    out.push_back(expert ? *expert : StackedPlace{name, {}});
    if (auto stacked = without_layer(out.back().tensor)) {
      for (const Index i : out.back().leading) stacked->leading.push_back(i);
      out.push_back(*std::move(stacked));
    }
  }
  return out;
}

/// A parameter of one rank that holds all of it: what it is composed of, in one index space.
struct Parameter {
  const Slot* slot = nullptr;
  Dims shape;
  std::vector<PlacedBox> parts;
};

Parameter parameter_of(const ModelLayout& layout, SlotId id, Rank r) {
  Parameter out{&layout.slot(id), layout.local_shape(id, r), {}};
  Index before = 0;
  for (const Section& section : out.slot->sections) {
    for (PlacedBox part : section.parts) {
      part.at[out.slot->stack_dim] += before;
      out.parts.push_back(part);
    }
    if (section.extent.size() > 0) before += section.extent[out.slot->stack_dim];
  }
  return out;
}

/// The part of `part` in `box` of its parameter, placed from the box's origin; none if it is empty.
std::optional<PlacedBox> clipped(const PlacedBox& part, const Box& box) {
  PlacedBox out = part;
  std::array<bool, kMaxDims> mapped{};
  for (int i = 0; i < part.box.rank(); ++i) {
    const int dim = part.dims[static_cast<std::size_t>(i)];
    mapped[static_cast<std::size_t>(dim)] = true;
    const Interval kept = part.within(i, box[dim]);
    if (kept.empty()) return std::nullopt;
    out.box = out.box.with(i, kept);
    out.at[dim] =
        part.at[dim] + (kept.begin() - part.box[i].begin()) * part.step(i) - box[dim].begin();
  }
  for (int dim = 0; dim < part.at.size(); ++dim) {
    if (mapped[static_cast<std::size_t>(dim)]) continue;
    const Index at = part.at[dim];
    if (at < box[dim].begin() || at >= box[dim].end()) return std::nullopt;
    out.at[dim] = at - box[dim].begin();
  }
  return out;
}

/// `part` in a tensor with these leading dimensions before its own.
PlacedBox stacked(const PlacedBox& part, const Dims& leading) {
  PlacedBox out = part;
  out.at = leading;
  for (const Index at : part.at) out.at.push_back(at);
  for (int i = 0; i < part.box.rank(); ++i)
    out.dims[static_cast<std::size_t>(i)] =
        static_cast<std::int8_t>(part.dims[static_cast<std::size_t>(i)] + leading.size());
  return out;
}

/// Matches the parameters of a layout with the tensors of a checkpoint.
class Matcher {
 public:
  Matcher(const Checkpoint& weights, const ModelLayout& layout)
      : weights_(weights), content_(weights.pieces()), layout_(layout) {
    for (std::size_t i = 0; i < content_.tensors.size(); ++i)
      ids_.emplace(content_.tensors[i].name, i);
    parameters_.resize(content_.tensors.size());
  }

  Result<> match() {
    for (const Rank r : layout_.ranks().members())
      for (const SlotId id : layout_.slots_of(r)) {
        auto placed = place(parameter_of(layout_, id, r));
        if (!placed) return tl::unexpected(std::move(placed).error().in(weights_.folder()));
      }
    return {};
  }

  /// The dtype of each tensor of the model, in its order.
  Result<std::vector<DType>> dtypes() const {
    const ModelSpec& model = layout_.model();
    std::vector<std::optional<DType>> found(static_cast<std::size_t>(model.size()));
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      for (const auto& [leading, parameter] : parameters_[i])
        for (const PlacedBox& part : parameter.parts) {
          auto& dtype = found[part.tensor.index()];
          if (dtype && *dtype != content_.tensors[i].dtype)
            return fail(Code::unsupported, fmt::format("{}: parts of '{}' have two dtypes",
                                                       weights_.folder(), model[part.tensor].name));
          dtype = content_.tensors[i].dtype;
        }
    std::vector<DType> out;
    for (Index i = 0; i < model.size(); ++i)
      out.push_back(found[static_cast<std::size_t>(i)].value_or(
          model.tensors()[static_cast<std::size_t>(i)].dtype));
    return out;
  }

  /// The local tensor that a piece is.
  Result<std::optional<ExplicitTensor>> local(const TensorPiece& piece) const {
    const auto& parameters = parameters_[piece.tensor];
    if (parameters.empty()) return std::optional<ExplicitTensor>();
    const TensorSpec& stored = content_.tensors[piece.tensor];
    const Slot& slot = *parameters.begin()->second.slot;
    ExplicitTensor out{.name = piece.local, .dtype = stored.dtype, .shape = piece.box.shape()};
    out.padded = true;
    out.map = slot.map;
    for (int i = 0; i < piece.order.size(); ++i)
      if (piece.order[i] != i)
        return fail(Code::unsupported, fmt::format("{}: {} is not row-major", weights_.folder(),
                                                   in_quotes(piece.local)));
    for (const auto& [leading, parameter] : parameters)
      add_parts(piece.box, leading, parameter, out);
    return std::optional(std::move(out));
  }

  std::vector<std::string> left_out() const {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      if (parameters_[i].empty()) names.push_back(content_.tensors[i].name);
    return names;
  }

 private:
  Result<> place(Parameter parameter) {
    for (const StackedPlace& place : places_of(parameter.slot->name)) {
      const auto id = ids_.find(place.tensor);
      if (id == ids_.end()) continue;
      const Dims& shape = content_.tensors[id->second].shape;
      Dims want = place.leading;
      for (const Index n : parameter.shape) want.push_back(n);
      bool fits = want.size() == shape.size();
      for (int i = 0; fits && i < shape.size(); ++i)
        fits = i < place.leading.size()
                   ? want[i] < shape[i]
                   : can_hold(want[i], shape[i], parameter, i - place.leading.size());
      if (!fits)
        return fail(Code::corrupt, fmt::format("'{}' is {}; '{}' of the model is {} of it",
                                               place.tensor, to_string(shape), parameter.slot->name,
                                               to_string(parameter.shape)));
      auto key = std::vector<Index>(place.leading.begin(), place.leading.end());
      parameters_[id->second].emplace(std::move(key), std::move(parameter));
      return {};
    }
    return fail(Code::corrupt, fmt::format("has no '{}'", parameter.slot->name));
  }

  /// Rows of a padded vocabulary may be more or fewer than in the layout, but hold the model's.
  static bool can_hold(Index want, Index stored, const Parameter& parameter, int dim) {
    if (want == stored) return true;
    if (!parameter.slot->padded) return false;
    Index used = 0;
    for (const PlacedBox& part : parameter.parts)
      for (int i = 0; i < part.box.rank(); ++i)
        if (part.dims[static_cast<std::size_t>(i)] == dim)
          used = std::max(used, part.at[dim] + (part.box[i].size() - 1) * part.step(i) + 1);
    return stored >= used;
  }

  static void add_parts(const Box& box, const std::vector<Index>& leading,
                        const Parameter& parameter, ExplicitTensor& out) {
    const int stack = static_cast<int>(leading.size());
    Dims at;
    for (int i = 0; i < stack; ++i) {
      const Index index = leading[static_cast<std::size_t>(i)];
      if (index < box[i].begin() || index >= box[i].end()) return;
      at.push_back(index - box[i].begin());
    }
    std::array<Interval, kMaxDims> own;
    const int rank = box.rank() - stack;
    for (int i = 0; i < rank; ++i) own[static_cast<std::size_t>(i)] = box[stack + i];
    const Box inner(std::span<const Interval>(own.data(), static_cast<std::size_t>(rank)));
    for (const PlacedBox& part : parameter.parts)
      if (const auto kept = clipped(part, inner)) out.parts.push_back(stacked(*kept, at));
  }

  const Checkpoint& weights_;
  const TensorPieces& content_;
  const ModelLayout& layout_;
  std::map<std::string, std::size_t> ids_;
  std::vector<std::map<std::vector<Index>, Parameter>> parameters_;  ///< by stored tensor.
};

}  // namespace

bool is_megatron(const TensorPieces& content) {
  return std::ranges::any_of(content.tensors,
                             [](const TensorSpec& t) { return t.name == kEmbedding; });
}

Result<MegatronCheckpoint> megatron_checkpoint(const Checkpoint& weights,
                                               const ModelConfig& config) {
  const auto canonical = std::make_shared<const ModelSpec>(RESHARD_TRY(canonical_tensors(config)));
  const LayoutSpec spec = with_explicit_defaults(RESHARD_TRY(parse_layout("megatron")), config);
  const ModelLayout whole =
      RESHARD_TRY(megatron_layout(spec, FamilyInput{canonical, &config, nullptr, 1, true}));
  Matcher matcher(weights, whole);
  RESHARD_TRY(matcher.match());
  const auto dtypes = RESHARD_TRY(matcher.dtypes());
  ModelSpec typed;
  for (std::size_t i = 0; i < dtypes.size(); ++i) {
    const CanonicalTensor& t = canonical->tensors()[i];
    RESHARD_TRY(typed.add(t.name, t.shape, dtypes[i], t.merged));
  }
  MegatronCheckpoint out;
  out.model = std::make_shared<const ModelSpec>(std::move(typed));
  out.left_out = matcher.left_out();
  LayoutBuilder builder("dcp", out.model);
  ExplicitSlots slots(builder);
  const RankSet rank = RankSet::range(0, 1);
  slots.add_ranks(rank);
  for (const TensorPiece& piece : weights.pieces().pieces)
    if (auto local = RESHARD_TRY(matcher.local(piece))) slots.add(rank, *std::move(local));
  slots.finish();
  out.layout = std::make_shared<const ModelLayout>(RESHARD_TRY(std::move(builder).finish()));
  return out;
}

}  // namespace reshard::dcp
