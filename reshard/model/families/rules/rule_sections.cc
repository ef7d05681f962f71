// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/families/rules/rule_sections.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <set>
#include <span>
#include <string_view>

namespace reshard::families {
namespace {

/// The largest number of boxes that one tensor may be taken apart into.
constexpr Index kMaxPieces = Index{1} << 16;
constexpr Index kMaxExtent = Index{1} << 40;

/// The pieces of a box in units of so many elements along a dimension of the section; each unit
/// begins a turn after the one before it, at `before`.
void split(const PlacedBox& placed, int dim, Index unit, Index turn, Index before,
           std::vector<PlacedBox>& out) {
  int along = -1;  // the tensor's dimension
  for (int i = 0; i < placed.box.rank(); ++i)
    if (placed.dims[static_cast<std::size_t>(i)] == dim) along = i;
  const Index begin = placed.at[dim];
  const Index size = along < 0 ? 1 : placed.box[along].size();
  for (Index at = begin; at < begin + size;) {
    const Index of = at / unit, end = std::min(begin + size, (of + 1) * unit);
    PlacedBox piece = placed;
    if (along >= 0) {
      const Index first = placed.box[along].begin() + at - begin;
      piece.box = placed.box.with(along, {first, first + end - at});
    }
    piece.at[dim] = of * turn + before + at % unit;
    out.push_back(piece);
    at = end;
  }
}

/// The shape that the keys of a part apply to.
Dims shape_of(const RulePart& part, const CanonicalTensor& tensor) {
  Dims shape;
  for (int i = part.apart ? 1 : 0; i < tensor.shape.size(); ++i) shape.push_back(tensor.shape[i]);
  return shape;
}

std::string shape_text(const Dims& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

}  // namespace

bool RuleSections::is_plain(const RulePart& part) {
  return !part.apart && part.take.empty() && part.dims.empty() && part.each == 0 && !part.experts &&
         part.pad.empty();
}

Result<Section> RuleSections::section(const RulePart& part, const std::vector<TensorId>& tensors,
                                      const Experts* experts) {
  if (is_plain(part)) return plain(part, tensors[0]);
  Section section = RESHARD_TRY(uncut(part, tensors, experts));
  RESHARD_TRY(cut_dims(part, section));
  return section;
}

Result<Section> RuleSections::together(const Rule& rule, const std::vector<Section>& parts,
                                       int dim) {
  const Index units = rule.interleave ? RESHARD_TRY(number(*rule.interleave, 0, 1)) : 1;
  Section whole = units > 1 ? RESHARD_TRY(interleaved(parts, dim, units)) : joined(parts, dim);
  RESHARD_TRY(cut_dims(rule, whole));
  return whole;
}

Section RuleSections::joined(const std::vector<Section>& parts, int dim) {
  Section whole = parts[0];
  for (std::size_t k = 1; k < parts.size(); ++k) {
    for (PlacedBox placed : parts[k].parts) {
      placed.at[dim] += whole.extent[dim];
      whole.parts.push_back(placed);
    }
    whole.extent[dim] += parts[k].extent[dim];
  }
  return whole;
}

Result<Section> RuleSections::interleaved(const std::vector<Section>& parts, int dim,
                                          Index units) const {
  Index turn = 0;  // elements of a unit of each part
  for (const Section& part : parts) {
    if (part.extent[dim] % units != 0)
      return fail(Code::invalid_argument, fmt::format("{} elements along dimension {} are not {} "
                                                      "units of the same size",
                                                      part.extent[dim], dim, units));
    turn += part.extent[dim] / units;
  }
  Section whole = parts[0];
  whole.parts.clear();
  whole.extent[dim] = turn * units;
  Index before = 0;  // in a turn
  for (const Section& part : parts) {
    const Index unit = part.extent[dim] / units;
    if (static_cast<Index>(part.parts.size()) > kMaxPieces / units)
      return fail(
          Code::invalid_argument,
          fmt::format("{} units would be taken apart into more than {} pieces", units, kMaxPieces));
    for (const PlacedBox& placed : part.parts) split(placed, dim, unit, turn, before, whole.parts);
    before += unit;
  }
  return whole;
}

Result<> RuleSections::cut_dims(const RulePart& part, Section& section) {
  for (const RulePart::Cut* cut : RESHARD_TRY(applied(part))) {
    const int dim = RESHARD_TRY(dim_of(cut->dim, section.extent.size(), "cut"));
    RESHARD_TRY(cut_dim(section, dim, *cut));
  }
  return {};
}

Result<Index> RuleSections::number(const Expression& expression, Index extent, Index least) const {
  const Index value = RESHARD_TRY(expression.value([&](std::string_view name) {
    return name == "extent" ? std::optional(extent) : numbers_(name);
  }));
  if (value >= least && value <= kMaxExtent) return value;
  return fail(Code::invalid_argument, fmt::format("'{}' is {}, must be from {} to {}",
                                                  expression.text(), value, least, kMaxExtent));
}

Result<int> RuleSections::dim_of(int dim, int rank, const char* what) const {
  const int found = dim < 0 ? dim + rank : dim;
  if (found >= 0 && found < rank) return found;
  return fail(Code::invalid_argument,
              fmt::format("{} of dimension {} but the tensor has {}", what, dim, rank));
}

Result<std::vector<const RulePart::Cut*>> RuleSections::applied(const RulePart& part) const {
  std::vector<const RulePart::Cut*> cuts;
  std::set<std::string_view> axes;
  std::set<int> dims;
  for (const RulePart::Cut& cut : part.cuts) {
    if (cut.when && RESHARD_TRY(cut.when->value(numbers_)) == 0) continue;
    bool once = dims.insert(cut.dim).second;
    for (const std::string& axis : cut.axes) once &= axes.insert(axis).second;
    if (!once)
      return fail(Code::invalid_argument,
                  fmt::format("two cuts of '{}' that apply together share a dimension or an axis",
                              part.match));
    cuts.push_back(&cut);
  }
  return cuts;
}

Result<DimCut> RuleSections::how(const RulePart::Cut& cut, Index extent) const {
  DimCut how;
  if (cut.axes.size() > how.axes.size())
    return fail(Code::invalid_argument,
                fmt::format("a dimension can be cut over at most {} axes, not {}", how.axes.size(),
                            cut.axes.size()));
  for (const std::string& name : cut.axes) {
    const int axis = b_.mesh(mesh_).axis(name);
    if (axis < 0)
      return fail(Code::invalid_argument,
                  fmt::format("axis '{}' is not among the file's axes", name));
    how.axes[static_cast<std::size_t>(how.num_axes++)] = static_cast<std::int8_t>(axis);
  }
  how.rule = cut.rule;
  how.combine = cut.combine;
  how.granule = RESHARD_TRY(number(cut.granule, extent, 1));
  if (!cut.even) return how;
  const Index parts = num_parts(how, b_.mesh(mesh_)), units = extent / how.granule;
  const bool repeats = how.rule == CutRule::spread && units > 0 && parts % units == 0;
  if (extent % how.granule == 0 && (units % parts == 0 || repeats)) return how;
  return fail(Code::invalid_argument,
              fmt::format("{} {} of {} cannot be cut evenly into {}", units,
                          how.granule == 1 ? "elements" : fmt::format("units of {}", how.granule),
                          extent, parts));
}

/// Cuts a dimension of the stored tensor. If it is several dimensions of the index space, cuts
/// must fall between indices of the first of them.
Result<> RuleSections::cut_stored(Section& section, const CanonicalTensor& tensor, int dim,
                                  const RulePart::Cut& cut) {
  int first = 0;
  for (int at = 0; at < dim; ++at, ++first)
    while ((tensor.merged.bits >> first & 1) != 0) ++first;
  Index minor = 1;
  for (int k = first; (tensor.merged.bits >> k & 1) != 0; ++k) minor *= tensor.shape[k + 1];
  DimCut made = RESHARD_TRY(how(cut, tensor.shape[first] * minor));
  const bool by_granule = made.granule % minor == 0;
  const Index parts = num_parts(made, b_.mesh(mesh_));
  if (!by_granule && (made.granule != 1 || tensor.shape[first] % parts != 0))
    return fail(Code::unsupported,
                fmt::format("dimension {} of {} parts of {} elements each would be cut inside one; "
                            "give it a granule that is a multiple of {}",
                            dim, tensor.shape[first], minor, minor));
  if (by_granule) made.granule /= minor;
  section.cuts[static_cast<std::size_t>(first)] = b_.add_cut(made);
  return {};
}

Result<> RuleSections::cut_dim(Section& section, int dim, const RulePart::Cut& cut) {
  const DimCut made = RESHARD_TRY(how(cut, section.extent[dim]));
  section.cuts[static_cast<std::size_t>(dim)] = b_.add_cut(made);
  return {};
}

Result<Section> RuleSections::plain(const RulePart& part, TensorId id) {
  const CanonicalTensor& tensor = b_.model()[id];
  Section section = whole_tensor(b_.model(), id);
  const int rank = tensor.stored_shape().size();
  for (const RulePart::Cut* cut : RESHARD_TRY(applied(part))) {
    const int dim = RESHARD_TRY(dim_of(cut->dim, rank, "cut"));
    RESHARD_TRY(cut_stored(section, tensor, dim, *cut));
  }
  return section;
}

Result<RuleSections::Pieces> RuleSections::taken(const RulePart& part, int dim,
                                                 Index extent) const {
  const auto take = std::ranges::find(part.take, dim, &RulePart::Take::dim);
  if (take == part.take.end()) return Pieces{{{Interval(0, extent), 0}}, extent};
  const Index period = take->period ? RESHARD_TRY(number(*take->period, extent, 1)) : extent;
  const Index begin = RESHARD_TRY(number(take->begin, extent, 0));
  const Index end = RESHARD_TRY(number(take->end, extent, 0));
  if (begin > end || end > period || (period > 0 && extent % period != 0))
    return fail(Code::invalid_argument,
                fmt::format("elements [{}, {}) of each {} cannot be taken of {} along dimension {}",
                            begin, end, period, extent, dim));
  const Index repeats = period == 0 ? 0 : extent / period, size = end - begin;
  const Index turns = take->turns ? RESHARD_TRY(number(*take->turns, extent, 1)) : 1;
  if (size % turns != 0)
    return fail(Code::invalid_argument,
                fmt::format("{} elements along dimension {} cannot be dealt out in {} turns", size,
                            dim, turns));
  const Index each = turns == 1 ? 1 : size;  // pieces
  if (repeats > kMaxPieces / std::max<Index>(each, 1))
    return fail(Code::invalid_argument,
                fmt::format("dimension {} would be taken apart into {} pieces, at most {} may be",
                            dim, repeats > kMaxPieces ? repeats : repeats * each, kMaxPieces));
  Pieces out;
  for (Index k = 0; k < repeats; ++k) {
    const Index from = k * period + begin, at = k * size;
    if (turns == 1) out.pieces.push_back({Interval(from, from + size), at});
    for (Index i = 0; turns > 1 && i < size; ++i)
      out.pieces.push_back(
          {Interval(from + i, from + i + 1), at + i % turns * (size / turns) + i / turns});
  }
  out.extent = repeats * size;
  return out;
}

Result<> RuleSections::pad(const RulePart& part, Section& section) {
  for (const RulePart::Pad& pad : part.pad) {
    const int dim = RESHARD_TRY(dim_of(pad.dim, section.extent.size(), "pad"));
    const Index extent = section.extent[dim];
    Index multiple = RESHARD_TRY(number(pad.multiple, extent, 1));
    for (const RulePart::Cut* cut : RESHARD_TRY(applied(part)))
      if (RESHARD_TRY(dim_of(cut->dim, section.extent.size(), "cut")) == dim) {
        RulePart::Cut any = *cut;
        any.even = false;
        const DimCut made = RESHARD_TRY(how(any, extent));
        const Index parts = num_parts(made, b_.mesh(mesh_)) * made.granule;
        if (multiple > kMaxExtent / parts)
          return fail(Code::invalid_argument,
                      fmt::format("padding to a multiple of {} and {} parts exceeds {}", multiple,
                                  parts, kMaxExtent));
        multiple = std::lcm(multiple, parts);
      }
    section.extent[dim] = (extent + multiple - 1) / multiple * multiple;
  }
  return {};
}

Result<> RuleSections::check_alike(const RulePart& part,
                                   const std::vector<TensorId>& tensors) const {
  const CanonicalTensor& first = b_.model()[tensors[0]];
  const int n = shape_of(part, first).size();
  if (n == 0 && part.apart)
    return fail(Code::invalid_argument, fmt::format("'{}' is {}: apart needs a second dimension",
                                                    first.name, shape_text(first.shape)));
  const bool indexed = !part.dims.empty();  // `dims` are those of the index space
  if (first.merged.bits != 0 && !indexed)
    return fail(Code::unsupported,
                fmt::format("'{}' is indexed as {} and stored as {}: rules take it as it is only",
                            first.name, shape_text(first.shape), shape_text(first.stored_shape())));
  if (!part.dims.empty() && static_cast<int>(part.dims.size()) != n)
    return fail(Code::invalid_argument, fmt::format("'{}' has {} dimensions, dims lists {}",
                                                    first.name, n, part.dims.size()));
  if (part.each > 0 && n == kMaxDims)
    return fail(Code::invalid_argument,
                fmt::format("'{}' has {} dimensions, and each adds one", first.name, n));
  for (const RulePart::Take& take : part.take) RESHARD_TRY(dim_of(take.dim, n, "take"));
  for (const TensorId id : tensors)
    if (const CanonicalTensor& t = b_.model()[id];
        t.shape != first.shape || t.merged != first.merged)
      return fail(Code::invalid_argument,
                  fmt::format("'{}' is {}, and '{}' beside it is {}", t.name, shape_text(t.shape),
                              first.name, shape_text(first.shape)));
  return {};
}

RuleSections::Pieces RuleSections::runs_of(const std::vector<Index>& order) {
  Pieces out;
  for (const Index expert : order) {
    if (out.pieces.empty() || out.pieces.back().of.end() != expert)
      out.pieces.push_back({Interval(expert, expert + 1), out.extent});
    else
      out.pieces.back().of = {out.pieces.back().of.begin(), expert + 1};
    ++out.extent;
  }
  return out;
}

Result<RuleSections::Shares> RuleSections::expert_ranks(const RulePart& part) const {
  Shares shares;
  for (const RulePart::Cut* cut : RESHARD_TRY(applied(part))) {
    if (cut->dim != 0) continue;
    RulePart::Cut any = *cut;
    any.even = false;
    shares = {num_parts(RESHARD_TRY(how(any, 1)), b_.mesh(mesh_)), cut->even};
  }
  return shares;
}

Result<RuleSections::Behind> RuleSections::behind(TensorId one, TensorId id) const {
  const CanonicalTensor &expert = b_.model()[one], &all = b_.model()[id];
  Behind found{id, 0, 0, 1};
  bool fits = expert.shape.size() == all.shape.size() && all.merged.bits == 0;
  for (int i = 0; fits && i < all.shape.size(); ++i) {
    if (all.shape[i] == expert.shape[i]) continue;
    fits = found.size == 0 && expert.shape[i] > 0 && all.shape[i] % expert.shape[i] == 0;
    if (fits) found = {id, i, expert.shape[i], all.shape[i] / expert.shape[i]};
  }
  if (found.size == 0 && fits) found.size = expert.shape[0];
  if (fits) return found;
  return fail(Code::invalid_argument,
              fmt::format("'{}' is {}, no whole number of experts as '{}', which is {}", all.name,
                          shape_text(all.shape), expert.name, shape_text(expert.shape)));
}

Result<Section> RuleSections::uncut(const RulePart& part, const std::vector<TensorId>& tensors,
                                    const Experts* experts) {
  RESHARD_TRY(check_alike(part, tensors));
  const CanonicalTensor& first = b_.model()[tensors[0]];
  const Dims shape = shape_of(part, first);
  const int n = shape.size(), shift = part.each > 0 ? 1 : 0;
  Uncut uncut{.section = {Dims::filled(n + shift, 0), {}, {}}};
  Index count = 1;
  for (int i = 0; i < n; ++i) {
    const int dim = shift + (part.dims.empty() ? i : part.dims[static_cast<std::size_t>(i)]);
    const bool ordered = i == 0 && part.experts && experts != nullptr;
    uncut.dims[static_cast<std::size_t>(i)] = static_cast<std::int8_t>(dim);
    uncut.pieces.push_back(ordered ? runs_of(*experts->order)
                                   : RESHARD_TRY(taken(part, i, shape[i])));
    uncut.section.extent[dim] = uncut.pieces.back().extent;
    count *= static_cast<Index>(uncut.pieces.back().pieces.size());
    if (count > kMaxPieces)
      return fail(Code::invalid_argument,
                  fmt::format("'{}' would be taken apart into more than {} pieces", first.name,
                              kMaxPieces));
  }
  const auto own = static_cast<Index>(tensors.size());
  const bool ordered = experts != nullptr && shift == 1;
  const Index entries = ordered ? static_cast<Index>(experts->order->size()) : own;
  if (shift == 1) uncut.section.extent[0] = entries;
  uncut.section.parts.reserve(static_cast<std::size_t>(entries * count));
  for (Index k = 0; k < entries; ++k) {
    const Index expert = ordered ? (*experts->order)[static_cast<std::size_t>(k)] : k;
    if (expert < own)
      uncut.add(tensors[static_cast<std::size_t>(expert)], k, nullptr, 0);
    else
      uncut.add(experts->behind->id, k, &*experts->behind, expert - own);
  }
  RESHARD_TRY(pad(part, uncut.section));
  return std::move(uncut.section);
}

void RuleSections::Uncut::add(TensorId id, Index entry, const Behind* behind, Index expert) {
  const int n = static_cast<int>(pieces.size());
  Index count = 1;
  for (const Pieces& along : pieces) count *= static_cast<Index>(along.pieces.size());
  for (Index which = 0; which < count; ++which) {
    PlacedBox placed{id, {}, Dims::filled(section.extent.size(), entry), dims};
    std::array<Interval, kMaxDims> box{};
    Index rest = which;
    for (int i = n - 1; i >= 0; --i) {
      const auto& along = pieces[static_cast<std::size_t>(i)].pieces;
      const auto size = static_cast<Index>(along.size());
      const Piece& piece = along[static_cast<std::size_t>(rest % size)];
      rest /= size;
      const Index at = behind != nullptr && i == behind->dim ? expert * behind->size : 0;
      box[static_cast<std::size_t>(i)] = {piece.of.begin() + at, piece.of.end() + at};
      placed.at[dims[static_cast<std::size_t>(i)]] = piece.at;
    }
    placed.box = Box(std::span<const Interval>(box.data(), static_cast<std::size_t>(n)));
    if (!placed.box.empty()) section.parts.push_back(placed);
  }
}

void RuleSections::set_index(Section& section, Index i) {
  const auto back = [](auto& values, auto first) {  // of dimensions, the first one
    std::shift_right(values.begin(), values.end(), 1);
    values[0] = first;
  };
  Dims extent{1};
  for (int k = 0; k < section.extent.size(); ++k) extent.push_back(section.extent[k]);
  section.extent = extent;
  back(section.cuts, CutId(0));
  for (PlacedBox& part : section.parts) {
    std::array<Interval, kMaxDims> box{Interval(i, i + 1)};
    Dims at{0};
    for (int k = 0; k < part.box.rank(); ++k) {
      box[static_cast<std::size_t>(k + 1)] = part.box[k];
      ++part.dims[static_cast<std::size_t>(k)];
    }
    for (int k = 0; k < part.at.size(); ++k) at.push_back(part.at[k]);
    part.box =
        Box(std::span<const Interval>(box.data(), static_cast<std::size_t>(part.box.rank() + 1)));
    part.at = at;
    back(part.dims, std::int8_t{0});
    back(part.gaps, std::int16_t{0});
  }
}

}  // namespace reshard::families
