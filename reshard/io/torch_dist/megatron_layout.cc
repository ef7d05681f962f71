// SPDX-License-Identifier: Apache-2.0
//
// A stored tensor has the dimensions [layers] [experts] of those that it stacks, then those of one
// parameter. A piece of it is a box: for each layer and expert in it, the same box of a parameter,
// which cuts each canonical box that the parameter is composed of.
#include "reshard/io/torch_dist/megatron_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "reshard/io/files/json.h"
#include "reshard/io/torch_dist/megatron_names.h"
#include "reshard/io/torch_dist/parameter.h"
#include "reshard/model/canonical.h"
#include "reshard/model/explicit_slots.h"
#include "reshard/model/families.h"
#include "reshard/model/naming/misfits.h"

namespace reshard::torch_dist {
namespace {

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
    if (parameters.empty()) return std::nullopt;
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

  std::vector<Leftover> leftovers() const {
    std::vector<Leftover> out;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const std::string& name = content_.tensors[i].name;
      if (parameters_[i].empty()) {
        out.push_back({name, second_names_of(i), {}});
      } else if (auto unused = first_unused(i)) {
        out.push_back({name, {}, *unused});
      }
    }
    return out;
  }

 private:
  /// How a parameter is stored at a place: whole, or as runs of its rows.
  struct Form {
    struct Part {
      std::size_t id = 0;  ///< of the stored tensor.
      Index row = 0;       ///< of the parameter, where it begins.
    };
    int stack = 0;  ///< leading dimensions.
    std::vector<Part> parts;
  };

  /// The pair that must be equal, by stored tensor: the part, the whole, and where it begins.
  using Pair = std::tuple<std::size_t, std::size_t, std::vector<Index>>;

  Result<> place(const Parameter& parameter) {
    std::optional<Form> used;
    for (const StackedPlace& place : places_of(parameter.slot->name)) {
      if (const auto id = ids_.find(place.tensor); id != ids_.end()) {
        if (!used) RESHARD_TRY(add(place.tensor, place.leading, parameter));
        use_or_note({place.leading.size(), {{id->second, 0}}}, used);
      }
      const auto ends = std::ranges::find_if(row_splits(), [&](const auto& of) {
        return std::ranges::all_of(of, [&](std::string_view end) {
          return ids_.contains(place.tensor + std::string(end));
        });
      });
      if (ends == row_splits().end()) continue;
      if (!used) RESHARD_TRY(add_split(place, *ends, parameter));
      use_or_note(form_of_split(place, *ends), used);
    }
    if (used) return {};
    const std::string& name = parameter.slot->name;
    return fail(Code::corrupt,
                fmt::format("tensor '{}' is missing{}", name, instead_of(name, misfits())));
  }

  Form form_of_split(const StackedPlace& place, std::span<const std::string_view> ends) const {
    Form form{place.leading.size(), {}};
    Index row = 0;
    for (const std::string_view end : ends) {
      const std::size_t id = ids_.at(place.tensor + std::string(end));
      const Dims& shape = content_.tensors[id].shape;
      form.parts.push_back({id, row});
      row += form.stack < shape.size() ? shape[form.stack] : 0;
    }
    return form;
  }

  /// Uses the first form of a parameter; of others, notes what must equal what.
  void use_or_note(Form form, std::optional<Form>& used) {
    if (!used) {
      used = std::move(form);
      return;
    }
    const bool whole = form.parts.size() == 1;
    if (whole && used->parts.size() == 1) {
      note(form.parts[0].id, {form.parts[0].id, used->parts[0].id, {}});
    } else if (form.stack == used->stack && whole) {
      for (const Form::Part& part : used->parts)
        note(form.parts[0].id, {part.id, form.parts[0].id, begin_of(form.stack, part)});
    } else if (form.stack == used->stack && used->parts.size() == 1) {
      for (const Form::Part& part : form.parts)
        note(part.id, {part.id, used->parts[0].id, begin_of(form.stack, part)});
    }
  }

  void note(std::size_t leftover, Pair pair) { second_names_[leftover].insert(std::move(pair)); }

  std::vector<Index> begin_of(int stack, const Form::Part& part) const {
    std::vector<Index> at(static_cast<std::size_t>(content_.tensors[part.id].shape.size()), 0);
    if (std::cmp_less(stack, at.size())) at[static_cast<std::size_t>(stack)] = part.row;
    return at;
  }

  /// The equalities due of a tensor that no parameter uses; none if it stands for several tensors.
  std::vector<SecondName> second_names_of(std::size_t id) const {
    const auto found = second_names_.find(id);
    if (found == second_names_.end()) return {};
    const bool is_whole =
        std::ranges::all_of(found->second, [&](const Pair& p) { return std::get<1>(p) == id; });
    if (!is_whole && found->second.size() != 1) return {};
    std::vector<SecondName> out;
    Index elements = 0;
    for (const auto& [part, whole, at] : found->second) {
      elements += volume(content_.tensors[part].shape);
      out.push_back({content_.tensors[part].name, content_.tensors[whole].name,
                     Dims(std::span<const Index>(at))});
    }
    if (is_whole && elements != volume(content_.tensors[id].shape)) return {};
    return out;
  }

  /// The names in the checkpoint that are those of no parameter.
  std::vector<std::string_view> misfits() const {
    std::set<std::string> known;
    for (const Rank r : layout_.ranks().members())
      for (const SlotId id : layout_.slots_of(r))
        for (const StackedPlace& place : places_of(layout_.slot(id).name)) {
          known.insert(place.tensor);
          for (const auto& ends : row_splits())
            for (const std::string_view end : ends) known.insert(place.tensor + std::string(end));
        }
    std::vector<std::string_view> names;
    for (const TensorSpec& tensor : content_.tensors)
      if (!known.contains(tensor.name)) names.push_back(tensor.name);
    return names;
  }

  /// The first place in the leading dimensions of a stored tensor that no parameter has.
  std::optional<Dims> first_unused(std::size_t id) const {
    const auto& parameters = parameters_[id];
    const int stack = static_cast<int>(parameters.begin()->first.size());
    Dims shape;
    for (int i = 0; i < stack; ++i) shape.push_back(content_.tensors[id].shape[i]);
    if (std::cmp_equal(parameters.size(), volume(shape))) return std::nullopt;
    std::vector<Index> at(static_cast<std::size_t>(stack), 0);
    while (parameters.contains(at))
      for (int i = stack - 1; i >= 0; --i) {
        if (++at[static_cast<std::size_t>(i)] < shape[i]) break;
        at[static_cast<std::size_t>(i)] = 0;
      }
    return Dims(std::span<const Index>(at));
  }

  /// The parameter's rows are the tensors of these names, one after another.
  Result<> add_split(const StackedPlace& place, std::span<const std::string_view> ends,
                     const Parameter& parameter) {
    const Index all = parameter.shape.size() > 0 ? parameter.shape[0] : 0;
    Index begin = 0;
    for (const std::string_view end : ends) {
      const std::string name = place.tensor + std::string(end);
      const Dims& shape = content_.tensors[ids_.at(name)].shape;
      const Index rows = place.leading.size() < shape.size() ? shape[place.leading.size()] : 0;
      if (rows > all - begin) break;
      RESHARD_TRY(add(name, place.leading, rows_of(parameter, begin, begin + rows)));
      begin += rows;
    }
    if (begin == all) return {};
    return fail(Code::corrupt,
                fmt::format("the parts of '{}' have {} rows and more, '{}' of the model is {}",
                            place.tensor, begin, parameter.slot->name, to_string(parameter.shape)));
  }

  Result<> add(const std::string& name, const Dims& leading, Parameter parameter) {
    const std::size_t id = ids_.at(name);
    const Dims& shape = content_.tensors[id].shape;
    Dims want = leading;
    for (const Index n : parameter.shape) want.push_back(n);
    bool fits = want.size() == shape.size();
    for (int i = 0; fits && i < shape.size(); ++i)
      fits = i < leading.size() ? want[i] < shape[i]
                                : can_hold(want[i], shape[i], parameter, i - leading.size());
    if (!fits)
      return fail(Code::corrupt,
                  fmt::format("'{}' is {}; '{}' of the model is {} of it", name, to_string(shape),
                              parameter.slot->name, to_string(parameter.shape)));
    auto key = std::vector<Index>(leading.begin(), leading.end());
    parameters_[id].emplace(std::move(key), std::move(parameter));
    return {};
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
  std::map<std::size_t, std::set<Pair>> second_names_;  ///< by the tensor that may be left over.
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
  RESHARD_TRY(check_parameters(whole));
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
  out.leftovers = matcher.leftovers();
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

}  // namespace reshard::torch_dist
