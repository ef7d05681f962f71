// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <charconv>

#include "reshard/base/value_map.h"
#include "reshard/model/families.h"
#include "reshard/model/families/dtensor_slots.h"
#include "reshard/model/families/transformers_modules.h"
#include "reshard/model/name_pattern.h"
#include "reshard/model/quant/files.h"

namespace reshard::families {
namespace {

/// True if the rule has no number range or the matched number is in it.
bool in_range(const DTensorRule& rule, const std::vector<std::string>& groups) {
  if (rule.number == 0) return true;
  const auto k = static_cast<std::size_t>(rule.number - 1);
  if (k >= groups.size()) return false;
  Index value = 0;
  const char* end = groups[k].data() + groups[k].size();
  const auto [stop, error] = std::from_chars(groups[k].data(), end, value);
  return error == std::errc() && stop == end && rule.from <= value && value < rule.to;
}

/// Placements as cuts of a stored tensor of this shape.
Result<TensorShards> shards_of(const std::vector<Placement>& placements, const Dims& shape) {
  TensorShards shards;
  for (std::size_t i = 0; i < placements.size(); ++i) {
    const Placement& p = placements[i];
    if (p.kind == Placement::Kind::replicate) continue;
    const int dim = p.dim < 0 ? p.dim + shape.size() : p.dim;
    if (dim < 0 || dim >= shape.size())
      return fail(Code::invalid_argument, fmt::format("placement {} but the tensor's shape is {}",
                                                      to_string(p), to_string(shape)));
    shards[static_cast<std::size_t>(dim)].push_back({static_cast<int>(i), p.split_factor});
  }
  return shards;
}

/// A rule of the file, with the matches of its wildcards.
struct Matched {
  std::size_t rule = 0;
  std::vector<std::string> groups;
};

/// Places the tensors of a model by the rules of a file.
class Placer {
 public:
  Placer(DTensorSlots& slots, const LayoutSpec& spec, const ModelSpec& model, const DTensorSet& set,
         std::optional<DType> dtype)
      : slots_(slots), spec_(spec), model_(model), set_(set), dtype_(dtype) {}

  Result<> add_meshes(Index offset) {
    for (const DTensorMesh& mesh : set_.meshes)
      meshes_.push_back(RESHARD_TRY(slots_.add_mesh(mesh, offset)));
    return {};
  }

  /// The major release of transformers whose expert names a rule matches first.
  Result<int> release_of(const std::vector<ModuleTensor>& newest) {
    for (const ModuleTensor& t : newest) {
      if (!t.stack) continue;
      const auto stacked = RESHARD_TRY(find(t.name));
      const auto single = RESHARD_TRY(find(model_[t.tensor].name));
      return single && (!stacked || single->rule < stacked->rule) ? 4 : kNewestTransformers;
    }
    return kNewestTransformers;
  }

  Result<> add(const ModuleTensor& t) {
    const auto matched = RESHARD_TRY(find(t.name));
    if (!matched)
      return fail(Code::not_found,
                  fmt::format("no rule of '{}' matches; add one, or a last rule that matches *",
                              spec_.file));
    const DTensorRule& rule = set_.rules[matched->rule];
    const std::string name =
        rule.name.empty() ? t.name : RESHARD_TRY(substituted(rule.name, matched->groups));
    const CanonicalTensor& first = model_[t.tensor];
    const bool casts = is_convertible(first.dtype) && !names_activation_scale(first.name);
    const auto stored = casts ? dtype_ : std::nullopt;
    const TensorShards shards = RESHARD_TRY(shards_of(rule.placements, t.stored_shape(model_)));
    return t.stack ? slots_.add_stack(meshes_[rule.mesh], *t.stack, name, shards, stored)
                   : slots_.add(meshes_[rule.mesh], t.tensor, name, shards, stored);
  }

 private:
  Result<std::optional<Matched>> find(const std::string& name) {
    for (std::size_t i = 0; i < set_.rules.size(); ++i) {
      auto groups = RESHARD_TRY(matcher_.match(set_.rules[i].match, name));
      if (groups && in_range(set_.rules[i], *groups)) return Matched{i, *std::move(groups)};
    }
    return std::optional<Matched>();
  }

  DTensorSlots& slots_;
  const LayoutSpec& spec_;
  const ModelSpec& model_;
  const DTensorSet& set_;
  const std::optional<DType> dtype_;
  PatternMatcher matcher_;
  std::vector<std::size_t> meshes_;
};

Result<> add_placed(DTensorSlots& slots, std::span<const DTensorMesh> meshes,
                    const PlacedTensor& placed, const ModelSpec& model, TensorId id) {
  if (placed.mesh >= meshes.size())
    return fail(Code::invalid_argument,
                fmt::format("there is no mesh {}, but {}", placed.mesh, meshes.size()));
  const DTensorMesh& mesh = meshes[placed.mesh];
  if (placed.placements.size() != mesh.shape.size())
    return fail(Code::invalid_argument, fmt::format("{} placements for a mesh of {} dimensions",
                                                    placed.placements.size(), mesh.shape.size()));
  for (const Placement& p : placed.placements)
    if (p.split_factor < 1 || p.split_factor > kMaxSplitFactor)
      return fail(Code::invalid_argument,
                  fmt::format("placement {}: its split factor must be 1 to {}", to_string(p),
                              kMaxSplitFactor));
  const CanonicalTensor& tensor = model[id];
  const TensorShards shards = RESHARD_TRY(shards_of(placed.placements, tensor.stored_shape()));
  const bool casts = placed.dtype != tensor.dtype;
  return slots.add(placed.mesh, id, tensor.name, shards,
                   casts ? std::optional(placed.dtype) : std::nullopt);
}

}  // namespace

}  // namespace reshard::families

namespace reshard {

Result<ModelLayout> dtensor_layout(const LayoutSpec& spec, const FamilyInput& input,
                                   const DTensorSet& set) {
  using namespace families;
  RESHARD_TRY(spec.check_keys({"dtype", "transformers", "offset"}));
  const Index offset = RESHARD_TRY(spec.integer("offset", 0, 0));
  const auto dtype = RESHARD_TRY(spec.dtype());
  auto release = RESHARD_TRY(transformers_release(spec));
  LayoutBuilder builder(to_string(spec), input.model);
  DTensorSlots slots(builder);
  const ModelSpec& model = *input.model;
  Placer placer(slots, spec, model, set, dtype);
  if (auto added = placer.add_meshes(offset); !added)
    return tl::unexpected(std::move(added).error().in("dtensor"));
  auto tensors = transformers_modules(model, input.config, kNewestTransformers);
  if (!release) release = RESHARD_TRY(placer.release_of(tensors));
  if (*release != kNewestTransformers)
    tensors = transformers_modules(model, input.config, *release);
  for (const ModuleTensor& t : tensors)
    if (auto added = placer.add(t); !added)
      return tl::unexpected(
          std::move(added).error().in(fmt::format("dtensor: tensor '{}'", t.name)));
  slots.finish();
  return std::move(builder).finish();
}

Result<ModelLayout> dtensor_layout(std::string name, std::shared_ptr<const ModelSpec> model,
                                   std::span<const DTensorMesh> meshes,
                                   std::span<const PlacedTensor> tensors) {
  using namespace families;
  if (static_cast<Index>(tensors.size()) != model->size())
    return fail(Code::invalid_argument,
                fmt::format("{}: {} tensors are placed, but the model has {}", name, tensors.size(),
                            model->size()));
  LayoutBuilder builder(name, model);
  DTensorSlots slots(builder);
  for (const DTensorMesh& mesh : meshes)
    if (auto added = slots.add_mesh(mesh, 0); !added)
      return tl::unexpected(std::move(added).error().in(name));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorId id(static_cast<TensorId::rep>(i));
    if (auto added = add_placed(slots, meshes, tensors[i], *model, id); !added)
      return tl::unexpected(
          std::move(added).error().in(fmt::format("{}: tensor '{}'", name, (*model)[id].name)));
  }
  slots.finish();
  return std::move(builder).finish();
}

}  // namespace reshard
