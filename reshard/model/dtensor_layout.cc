// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <charconv>

#include "reshard/base/value_map.h"
#include "reshard/model/dtensor_slots.h"
#include "reshard/model/families.h"
#include "reshard/model/name_pattern.h"

namespace reshard {
namespace {

/// True where the rule's number, if it asks for one, is in its range.
bool in_range(const DTensorRule& rule, const std::vector<std::string>& groups) {
  if (rule.number == 0) return true;
  const auto k = static_cast<std::size_t>(rule.number - 1);
  if (k >= groups.size()) return false;
  Index value = 0;
  const char* end = groups[k].data() + groups[k].size();
  const auto [stop, error] = std::from_chars(groups[k].data(), end, value);
  return error == std::errc() && stop == end && rule.from <= value && value < rule.to;
}

/// The rule's placements as cuts of a stored tensor of this shape.
Result<TensorShards> shards_of(const DTensorRule& rule, const Dims& shape) {
  TensorShards shards;
  for (std::size_t i = 0; i < rule.placements.size(); ++i) {
    const Placement& p = rule.placements[i];
    if (p.kind == Placement::Kind::replicate) continue;
    const int dim = p.dim < 0 ? p.dim + shape.size() : p.dim;
    if (dim < 0 || dim >= shape.size())
      return fail(Code::invalid_argument, fmt::format("placement {} but the tensor's shape is {}",
                                                      to_string(p), to_string(shape)));
    shards[static_cast<std::size_t>(dim)].push_back({static_cast<int>(i), p.split_factor});
  }
  return shards;
}

Result<> add_tensor(DTensorSlots& slots, PatternMatcher& matcher, std::optional<DType> dtype,
                    const std::vector<std::size_t>& meshes, const DTensorSet& set,
                    const LayoutSpec& spec, const ModelSpec& model, TensorId id) {
  for (const DTensorRule& rule : set.rules) {
    const auto groups = RESHARD_TRY(matcher.match(rule.match, model[id].name));
    if (!groups || !in_range(rule, *groups)) continue;
    const std::string name =
        rule.name.empty() ? model[id].name : RESHARD_TRY(substituted(rule.name, *groups));
    return slots.add(meshes[rule.mesh], id, name,
                     RESHARD_TRY(shards_of(rule, model[id].stored_shape())),
                     is_convertible(model[id].dtype) ? dtype : std::nullopt);
  }
  return fail(
      Code::not_found,
      fmt::format("no rule of '{}' matches; add one, or a last rule that matches *", spec.file));
}

}  // namespace

Result<ModelLayout> dtensor_layout(const LayoutSpec& spec, const FamilyInput& input,
                                   const DTensorSet& set) {
  RESHARD_TRY(spec.only({"dtype", "offset"}));
  const Index offset = RESHARD_TRY(spec.integer("offset", 0, 0));
  const auto dtype = RESHARD_TRY(spec.dtype());
  LayoutBuilder builder(to_string(spec), input.model);
  DTensorSlots slots(builder);
  PatternMatcher matcher;
  std::vector<std::size_t> meshes;
  for (const DTensorMesh& mesh : set.meshes) {
    auto added = slots.add_mesh(mesh, offset);
    if (!added) return tl::unexpected(std::move(added).error().in("dtensor"));
    meshes.push_back(*added);
  }
  const ModelSpec& model = *input.model;
  for (Index i = 0; i < model.size(); ++i) {
    const TensorId id(static_cast<TensorId::rep>(i));
    if (auto added = add_tensor(slots, matcher, dtype, meshes, set, spec, model, id); !added)
      return tl::unexpected(
          std::move(added).error().in(fmt::format("dtensor: tensor '{}'", model[id].name)));
  }
  slots.finish();
  return std::move(builder).finish();
}

}  // namespace reshard
