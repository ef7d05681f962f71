// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/families/rules/rule_places.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>

namespace reshard::families {
namespace {

constexpr std::string_view kPipeline = "pp";

/// The stage of a layer, of `layers` that `stages` share, and its number there.
LayerPlace stage_of(Index layer, Index layers, Index stages, StageRest rest) {
  const Index each = layers / stages, more = layers % stages;
  Index first_more = 0;  // the stages [first_more, first_more + more) have one more
  if (rest == StageRest::last) first_more = stages - more;
  if (rest == StageRest::before_last) first_more = std::max<Index>(0, stages - 1 - more);
  Index begin = 0;
  for (Index stage = 0; stage < stages; ++stage) {
    const Index end = begin + each + (stage >= first_more && stage < first_more + more ? 1 : 0);
    if (layer < end) return {stage, 0, layer - begin};
    begin = end;
  }
  return {stages, 0, 0};
}

std::set<std::string_view> axes_of(const Rule& rule) {
  std::set<std::string_view> axes;
  for (std::size_t k = 0; k < rule.num_parts(); ++k)
    for (const RulePart::Cut& cut : rule.part(k).cuts)
      axes.insert(cut.axes.begin(), cut.axes.end());
  for (const Rule::Where& where : rule.where) axes.insert(where.axis);
  return axes;
}

}  // namespace

Result<MeshId> RulePlaces::mesh_of(const Rule& rule) const {
  const auto axes = axes_of(rule);
  for (const auto& [name, id] : meshes_)
    if (std::ranges::all_of(axes, [&, mesh = id](auto a) { return b_.mesh(mesh).axis(a) >= 0; }))
      return id;
  for (const std::string_view axis : axes)
    if (std::ranges::none_of(meshes_, [&](auto& m) { return b_.mesh(m.id).axis(axis) >= 0; }))
      return fail(Code::invalid_argument,
                  fmt::format("axis '{}' is not among the file's axes", axis));
  return fail(Code::invalid_argument,
              fmt::format("no mesh has all of its axes ({})", fmt::join(axes, ", ")));
}

Result<Index> RulePlaces::number_in(const Rule::Where& where,
                                    const std::vector<std::string>& groups) {
  if (where.number < 1 || static_cast<std::size_t>(where.number) > groups.size())
    return fail(Code::invalid_argument, fmt::format("where: number {} but the pattern has {} "
                                                    "wildcards",
                                                    where.number, groups.size()));
  const std::string& text = groups[static_cast<std::size_t>(where.number - 1)];
  Index found = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), found);
  if (error != std::errc() || end != text.data() + text.size())
    return fail(Code::invalid_argument, fmt::format("where: '{}' is not a number", text));
  return found;
}

Result<LayerPlace> RulePlaces::layer(const Rule::Where& where, Index number, Index size) const {
  const Index layers = RESHARD_TRY(where.of->value(numbers_));
  if (layers_ && where.axis == kPipeline) return layers_(number, layers);
  if (layers < size)
    return fail(Code::invalid_argument, fmt::format("where: {}={} exceeds {}={}", where.axis, size,
                                                    where.of->text(), layers));
  return stage_of(number, layers, size, where.rest);
}

Result<LayerPlace> RulePlaces::coordinate(const Rule::Where& where, Index size,
                                          const std::vector<std::string>& groups) const {
  LayerPlace found;
  if (where.at) {
    found.stage = *where.at < 0 ? *where.at + size : *where.at;
    if (where.axis == kPipeline && found.stage == size - 1 && *where.at < 0)
      found.chunk = chunks_ - 1;
  } else {
    const Index number = RESHARD_TRY(number_in(where, groups));
    found = where.of ? RESHARD_TRY(layer(where, number, size))
                     : LayerPlace{number / where.per, 0, number % where.per};
  }
  if (found.stage >= 0 && found.stage < size) return found;
  return fail(Code::invalid_argument,
              fmt::format("where: {}={} is outside the axis, which has size {}", where.axis,
                          found.stage, size));
}

Result<RulePlaces::Place> RulePlaces::place(const Rule& rule,
                                            const std::vector<std::string>& groups) {
  const MeshId mesh = RESHARD_TRY(mesh_of(rule));
  Place place{mesh, {}, groups, {}};
  std::vector<std::pair<int, Index>> fixed, or_last;
  bool staged = false;
  for (const Rule::Where& where : rule.where) {
    const int axis = b_.mesh(mesh).axis(where.axis);
    const Index size = b_.mesh(mesh).axes()[static_cast<std::size_t>(axis)].size;
    const LayerPlace at = RESHARD_TRY(coordinate(where, size, groups));
    if (where.renumber)
      place.numbers[static_cast<std::size_t>(where.number - 1)] = std::to_string(at.number);
    if (where.axis == kPipeline && chunks_ > 1) {
      place.front = fmt::format("model{}.", at.chunk);
      staged = true;
    }
    fixed.emplace_back(axis, at.stage);
    const bool last = where.or_last && RESHARD_TRY(where.or_last->value(numbers_)) != 0;
    or_last.emplace_back(axis, last ? size - 1 : at.stage);
  }
  if (chunks_ > 1 && (!staged || or_last != fixed))
    return fail(Code::unsupported, "it is on several stages, so that vpp must be 1");
  place.ranks = b_.ranks_where(mesh, fixed);
  if (or_last == fixed) return place;
  const RankSetId last = b_.ranks_where(mesh, or_last);
  place.ranks = b_.add_ranks(b_.rank_set(place.ranks) | b_.rank_set(last));
  return place;
}

}  // namespace reshard::families
