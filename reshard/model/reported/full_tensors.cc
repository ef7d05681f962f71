// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/reported/full_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "reshard/model/families.h"
#include "reshard/model/families/explicit.h"

namespace reshard {
namespace {

/// A dimension of a box that runs along a dimension of the full tensor.
struct BoxAxis {
  int of = 0;  ///< dimension of the box.
  Index step = 1, size = 1;
};

/// A box of a model's tensor, and where it is in the full tensor.
struct PlacedTensorBox {
  TensorId tensor;
  std::vector<Interval> box;
  Dims at;
  /// For each dimension of the full tensor: the axes along it, the largest step first.
  std::vector<std::vector<BoxAxis>> axes;
};

}  // namespace

/// The boxes of a full tensor.
struct FullTensors::Composition {
  Dims shape;
  ValueMap map = ValueMap::identity;
  std::vector<PlacedTensorBox> boxes;
  /// For each dimension: the step of the first of two axes along it; 1: there is at most one.
  Dims minor;
};

namespace {

Dims unravel(Index at, const Dims& shape) {
  Dims out = Dims::filled(shape.size(), 0);
  for (int d = shape.size() - 1; d >= 0; --d) {
    if (shape[d] == 0) continue;
    out[d] = at % shape[d];
    at /= shape[d];
  }
  return out;
}

/// The dimension of a full tensor along which a box runs in such steps; none: along no dimension.
std::optional<std::pair<int, Index>> dimension_along(Index step, Index size, const Dims& shape) {
  const Dims strides = row_major(shape);
  for (int d = 0; d < shape.size(); ++d) {
    if (strides[d] == 0 || step % strides[d] != 0) continue;
    const Index along = step / strides[d];
    if (along > 0 && (size - 1) * along < shape[d]) return std::pair(d, along);
  }
  return std::nullopt;
}

/// Positions of nested axes in a range, as boxes: one interval for each axis.
using AxisRanges = std::vector<Interval>;

/// Appends to `out` the boxes, each after `head`, whose positions are in [begin, end). @pre steps
/// descend
void cut(std::span<const BoxAxis> axes, Index begin, Index end, const AxisRanges& head,
         std::vector<AxisRanges>& out) {
  if (axes.empty()) {
    if (begin <= 0 && 0 < end) out.push_back(head);
    return;
  }
  const auto floor_div = [](Index a, Index b) { return a >= 0 ? a / b : -((-a + b - 1) / b); };
  const auto ceil_div = [&](Index a, Index b) { return -floor_div(-a, b); };
  const BoxAxis& first = axes.front();
  Index span = 0;
  for (const BoxAxis& axis : axes.subspan(1)) span += (axis.size - 1) * axis.step;
  const Index low = std::max<Index>(0, ceil_div(begin - span, first.step));
  const Index high = std::min(first.size - 1, floor_div(end - 1, first.step));
  // The indices of the first axis at which all positions are in the range.
  Index whole_low = std::max(low, ceil_div(begin, first.step));
  Index whole_high = std::min(high, floor_div(end - 1 - span, first.step));
  if (whole_low > whole_high) {
    whole_low = high + 1;
    whole_high = high;
  }
  const auto partly = [&](Index k) {
    AxisRanges longer = head;
    longer.emplace_back(k, k + 1);
    cut(axes.subspan(1), begin - k * first.step, end - k * first.step, longer, out);
  };
  for (Index k = low; k < whole_low; ++k) partly(k);
  if (whole_low <= whole_high) {
    AxisRanges longer = head;
    longer.emplace_back(whole_low, whole_high + 1);
    for (const BoxAxis& axis : axes.subspan(1)) longer.emplace_back(0, axis.size);
    out.push_back(std::move(longer));
  }
  for (Index k = whole_high + 1; k <= high; ++k) partly(k);
}

/// How a dimension of the local tensor is counted: as one, or as two with `minor` indices each.
struct LocalDim {
  int first = 0;      ///< of the local tensor's index space.
  Index minor = 1;    ///< 1: one dimension.
  bool flat = false;  ///< one dimension, though two of a box run along it.
};

/// A piece of a box along one dimension of the full tensor: the range of each axis, and their first
/// index in the local tensor.
struct Piece {
  AxisRanges ranges;
  Index at = 0;
};

/// The pieces of a box that a rank holds along one dimension.
std::vector<Piece> pieces_along(Index at, std::span<const BoxAxis> axes,
                                std::span<const Interval> runs, const LocalDim& dim) {
  std::vector<Piece> out;
  Index local = 0;
  for (const Interval& run : runs) {
    std::vector<AxisRanges> cuts;
    if (!run.empty()) cut(axes, run.begin() - at, run.end() - at, {}, cuts);
    const auto add = [&](AxisRanges ranges) {
      Index first = 0;
      for (std::size_t i = 0; i < ranges.size(); ++i) first += ranges[i].begin() * axes[i].step;
      out.push_back({std::move(ranges), at + first - run.begin() + local});
    };
    for (AxisRanges& ranges : cuts) {
      if (!dim.flat || ranges.size() < 2 || ranges[1].size() == 1) {
        add(std::move(ranges));
        continue;
      }
      // Two axes that are one dimension: one index of the first at a time.
      for (Index k = ranges[0].begin(); k < ranges[0].end(); ++k) {
        AxisRanges one = ranges;
        one[0] = {k, k + 1};
        add(std::move(one));
      }
    }
    local += run.size();
  }
  return out;
}

/// One rank's part of a full tensor, in boxes of the model's tensors.
class LocalTensorParts {
 public:
  LocalTensorParts(const ReportedTensor& held, const Dims& minor) : held_(held) {
    for (int d = 0; d < held.shape.size(); ++d) {
      const auto& runs = held.runs[static_cast<std::size_t>(d)];
      Index size = 0;
      bool even = minor[d] > 1;
      for (const Interval& run : runs) {
        size += run.size();
        even &= run.begin() % minor[d] == 0 && run.end() % minor[d] == 0;
      }
      dims_.push_back(
          {static_cast<int>(index_shape_.size()), even ? minor[d] : 1, minor[d] > 1 && !even});
      if (even) index_shape_.push_back(size / minor[d]);
      index_shape_.push_back(even ? minor[d] : size);
      if (even) merged_.push_back(static_cast<int>(index_shape_.size()) - 2);
    }
  }

  /// Adds the parts of a box. Errors: `unsupported` for a step that is too large.
  Result<> add(const PlacedTensorBox& box) {
    std::vector<std::vector<Piece>> choices;
    for (std::size_t d = 0; d < dims_.size(); ++d) {
      choices.push_back(
          pieces_along(box.at[static_cast<int>(d)], box.axes[d], held_.runs[d], dims_[d]));
      if (choices.back().empty()) return {};
    }
    std::vector<std::size_t> at(choices.size(), 0);
    for (;;) {
      RESHARD_TRY(add_part(box, choices, at));
      std::size_t d = choices.size();
      while (d > 0 && ++at[d - 1] == choices[d - 1].size()) at[--d] = 0;
      if (d == 0) return {};
    }
  }

  /// The whole local tensor. Errors: `unsupported` for more dimensions than kMaxDims.
  Result<ExplicitTensor> finish(ValueMap map, const ModelSpec& model) {
    const auto rank = index_shape_.size();
    std::size_t spare = 0;
    for (const Part& part : parts_)
      spare = std::max(spare, part.dims.size() - std::min(rank, part.dims.size()));
    if (rank + spare > kMaxDims)
      return fail(Code::unsupported,
                  fmt::format("'{}' needs more than {} dimensions", held_.name, kMaxDims));
    ExplicitTensor out{.name = held_.name, .dtype = held_.dtype, .map = map};
    for (std::size_t i = 0; i < spare; ++i) out.shape.push_back(1);
    for (const Index n : index_shape_) out.shape.push_back(n);
    // Leading dimensions of boxes with more dimensions are merged with the first.
    for (std::size_t i = 0; i < spare && i + 1 < rank + spare; ++i)
      out.merged.bits |= static_cast<std::uint8_t>(1U << i);
    for (const int k : merged_)
      out.merged.bits |= static_cast<std::uint8_t>(1U << (static_cast<std::size_t>(k) + spare));
    Index covered = 0;
    for (const Part& part : parts_) {
      out.parts.push_back(placed(part, spare));
      covered += out.parts.back().box.volume();
      out.casts |= model[part.tensor].dtype != held_.dtype;
    }
    out.padded = covered != volume(out.shape);
    return out;
  }

 private:
  struct Part {
    TensorId tensor;
    std::vector<Interval> box;
    std::vector<Index> at;
    std::vector<int> dims;  ///< of the local tensor; -1: a dimension of size 1 that needs none.
    std::vector<Index> steps;
  };

  Result<> add_part(const PlacedTensorBox& box, const std::vector<std::vector<Piece>>& choices,
                    const std::vector<std::size_t>& chosen) {
    Part part{box.tensor, box.box, std::vector<Index>(index_shape_.size(), 0),
              std::vector<int>(box.box.size(), -1), std::vector<Index>(box.box.size(), 1)};
    for (std::size_t d = 0; d < dims_.size(); ++d) {
      const Piece& piece = choices[d][chosen[d]];
      const LocalDim& dim = dims_[d];
      const auto first = static_cast<std::size_t>(dim.first);
      part.at[first] = piece.at / dim.minor;
      if (dim.minor > 1) part.at[first + 1] = piece.at % dim.minor;
      for (std::size_t i = 0; i < piece.ranges.size(); ++i) {
        const BoxAxis& axis = box.axes[d][i];
        const auto of = static_cast<std::size_t>(axis.of);
        const Index begin = part.box[of].begin();
        part.box[of] = {begin + piece.ranges[i].begin(), begin + piece.ranges[i].end()};
        if (piece.ranges[i].size() == 1) continue;
        const bool outer = dim.minor > 1 && axis.step % dim.minor == 0;
        part.dims[of] = dim.first + (dim.minor > 1 && !outer ? 1 : 0);
        part.steps[of] = outer ? axis.step / dim.minor : axis.step;
        if (part.steps[of] > std::numeric_limits<std::int16_t>::max())
          return fail(Code::unsupported,
                      fmt::format("'{}': elements that are {} apart", held_.name, part.steps[of]));
      }
    }
    parts_.push_back(std::move(part));
    return {};
  }

  /// The part with a dimension of the local tensor for each of its own.
  PlacedBox placed(const Part& part, std::size_t spare) const {
    PlacedBox out{.tensor = part.tensor, .box = Box(part.box), .at = {}};
    for (std::size_t i = 0; i < spare; ++i) out.at.push_back(0);
    for (const Index at : part.at) out.at.push_back(at);
    std::vector<bool> taken(static_cast<std::size_t>(out.at.size()), false);
    for (const int dim : part.dims)
      if (dim >= 0) taken[static_cast<std::size_t>(dim) + spare] = true;
    std::size_t free = 0;
    for (std::size_t i = 0; i < part.dims.size(); ++i) {
      std::size_t dim = static_cast<std::size_t>(part.dims[i]) + spare;
      if (part.dims[i] < 0) {
        while (taken[free]) ++free;
        taken[dim = free] = true;
      }
      out.dims[i] = static_cast<std::int8_t>(dim);
      out.gaps[i] = static_cast<std::int16_t>(part.steps[i] - 1);
    }
    return out;
  }

  const ReportedTensor& held_;
  std::vector<LocalDim> dims_;
  std::vector<Index> index_shape_;
  std::vector<int> merged_;  ///< dimensions of the index space that are one with the next.
  std::vector<Part> parts_;
};

Result<> check_runs(const ReportedTensor& held) {
  bool inside = static_cast<int>(held.runs.size()) == held.shape.size();
  for (int d = 0; inside && d < held.shape.size(); ++d)
    for (const Interval& run : held.runs[static_cast<std::size_t>(d)])
      inside &= run.begin() >= 0 && run.end() <= held.shape[d];
  if (inside) return {};
  return fail(Code::invalid_argument,
              fmt::format("'{}': its runs are not inside the full tensor's shape {}", held.name,
                          to_string(held.shape)));
}

}  // namespace

FullTensors::FullTensors(std::string model_name, std::shared_ptr<const ModelSpec> model)
    : model_name_(std::move(model_name)), model_(std::move(model)) {
  for (Index i = 0; i < model_->size(); ++i) {
    const TensorId id(static_cast<TensorId::rep>(i));
    own_.emplace((*model_)[id].name, Source{nullptr, SlotId(0), id});
  }
}
FullTensors::FullTensors(FullTensors&&) noexcept = default;
FullTensors& FullTensors::operator=(FullTensors&&) noexcept = default;
FullTensors::~FullTensors() = default;

void FullTensors::add(std::shared_ptr<const ModelLayout> layout) {
  const auto ranks = layout->ranks().members();
  if (ranks.empty()) return;
  for (const SlotId slot : layout->slots_of(ranks.front()))
    layouts_.emplace(layout->slot(slot).name, Source{layout, slot, TensorId(0)});
}

bool FullTensors::contains(std::string_view name) const {
  return layouts_.find(name) != layouts_.end() || own_.find(name) != own_.end();
}

Result<const FullTensors::Source*> FullTensors::find(const ReportedTensor& held, Rank rank,
                                                     const std::string& hint) const {
  for (const auto* known : {&layouts_, &own_})
    if (const auto at = known->find(held.whole); at != known->end()) return &at->second;
  const std::string also =
      held.whole == held.name ? "" : fmt::format(" (local name '{}')", held.name);
  return fail(Code::not_found, fmt::format("rank {}: the model '{}' has no tensor '{}'{}; {}",
                                           rank.value(), model_name_, held.whole, also, hint));
}

Result<std::shared_ptr<const FullTensors::Composition>> FullTensors::composition(
    const std::string& name, const Source& source) const {
  if (source.composition != nullptr) return source.composition;
  auto out = std::make_shared<Composition>();
  std::vector<Fragment> fragments;
  if (source.layout == nullptr) {
    const CanonicalTensor& t = (*model_)[source.tensor];
    std::vector<Interval> box;
    for (const Index n : t.shape) box.emplace_back(0, n);
    out->shape = t.stored_shape();
    fragments.push_back({source.tensor, SlotId(0), Box(box), {0, row_major(t.shape)}});
  } else {
    const Rank first = source.layout->ranks().members().front();
    out->shape = source.layout->stored_shape(source.slot, first);
    out->map = source.layout->slot(source.slot).map;
    fragments = source.layout->local(source.slot, first).fragments;
  }
  out->minor = Dims::filled(out->shape.size(), 1);
  for (const Fragment& f : fragments) {
    if (f.box.empty()) continue;
    PlacedTensorBox box{f.tensor, {}, unravel(f.where.offset, out->shape), {}};
    box.axes.resize(static_cast<std::size_t>(out->shape.size()));
    for (int i = 0; i < f.box.rank(); ++i) {
      box.box.push_back(f.box[i]);
      const Index size = f.box[i].size();
      if (size == 1) continue;
      const auto along = dimension_along(f.where.strides[i], size, out->shape);
      if (!along)
        return fail(Code::unsupported, fmt::format("'{}': a box that runs along no dimension of {}",
                                                   name, to_string(out->shape)));
      box.axes[static_cast<std::size_t>(along->first)].push_back({i, along->second, size});
    }
    for (int d = 0; d < out->shape.size(); ++d) {
      auto& axes = box.axes[static_cast<std::size_t>(d)];
      std::ranges::stable_sort(axes, std::greater<>(), &BoxAxis::step);
      if (axes.size() > 2)
        return fail(Code::unsupported,
                    fmt::format("'{}': three dimensions of a box along one of the tensor's", name));
      if (axes.size() == 2) out->minor[d] = axes[0].step;
    }
    out->boxes.push_back(std::move(box));
  }
  return source.composition = std::move(out);
}

Result<ModelLayout> FullTensors::layout(std::string name, std::span<const RankTensors> ranks,
                                        const std::string& hint) const {
  ExplicitLayout out{.name = name, .tensors = model_, .ranks = {}, .omitted = {}, .locals = {}};
  ExplicitTensors tensors;
  std::vector<bool> held(static_cast<std::size_t>(model_->size()), false);
  for (const RankTensors& here : ranks) {
    if (here.rank.value() < 0 || here.rank.value() >= kMaxExplicitRanks)
      return fail(Code::invalid_argument, fmt::format("rank {} must be between 0 and {}",
                                                      here.rank.value(), kMaxExplicitRanks - 1));
    RankSet rank;
    rank.insert(here.rank);
    out.ranks = out.ranks | rank;
    std::map<std::string_view, std::size_t> last;
    for (std::size_t i = 0; i < here.tensors.size(); ++i) last[here.tensors[i].name] = i;
    for (std::size_t i = 0; i < here.tensors.size(); ++i) {
      const ReportedTensor& t = here.tensors[i];
      if (last[t.name] != i) continue;
      const Source& source = *RESHARD_TRY(find(t, here.rank, hint));
      const auto full = RESHARD_TRY(composition(t.whole, source));
      if (t.shape != full->shape)
        return fail(Code::invalid_argument,
                    fmt::format("'{}': the full tensor '{}' has shape {}, but the model says {}",
                                t.name, t.whole, to_string(t.shape), to_string(full->shape)));
      RESHARD_TRY(check_runs(t));
      LocalTensorParts parts(t, full->minor);
      for (const PlacedTensorBox& box : full->boxes) RESHARD_TRY(parts.add(box));
      ExplicitTensor local = RESHARD_TRY(parts.finish(full->map, *model_));
      for (const PlacedBox& part : local.parts) held[part.tensor.index()] = true;
      tensors.add(rank, std::move(local));
    }
  }
  for (Index i = 0; i < model_->size(); ++i)
    if (!held[static_cast<std::size_t>(i)])
      out.omitted.push_back(TensorId(static_cast<TensorId::rep>(i)));
  for (ExplicitTensors::Entry& entry : std::move(tensors).take()) {
    RESHARD_TRY(check_explicit(entry.tensor, *model_));
    out.locals.push_back({std::move(entry.ranks), std::move(entry.tensor)});
  }
  return explicit_layout(LayoutSpec{"explicit", "", {}}, {model_}, out);
}

}  // namespace reshard
