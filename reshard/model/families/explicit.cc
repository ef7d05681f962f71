// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/families/explicit.h"

#include <fmt/format.h>

#include "reshard/model/families.h"
#include "reshard/model/families/local_names.h"

namespace reshard {
namespace {

/// The indices of the element at a row-major offset. @pre no dimension is empty
Dims indices_at(Index offset, const Dims& shape) {
  Dims at = Dims::filled(shape.size(), 0);
  for (int k = shape.size() - 1; k >= 0; --k) {
    at[k] = offset % shape[k];
    offset /= shape[k];
  }
  return at;
}

ExplicitTensor local_tensor(const ModelLayout& layout, SlotId id, Rank r) {
  const Slot& slot = layout.slot(id);
  ExplicitTensor out{.name = slot.name,
                     .dtype = slot.dtype,
                     .shape = layout.local_shape(id, r),
                     .padded = slot.padded,
                     .merged = slot.merged,
                     .map = slot.map,
                     .casts = slot.casts};
  for (std::size_t k = 0; k < slot.sections.size(); ++k)
    for (std::size_t p = 0; p < slot.sections[k].parts.size(); ++p) {
      const PartId part{id, static_cast<std::int32_t>(k), static_cast<std::int32_t>(p)};
      const auto f = layout.fragment(part, r);
      if (!f) continue;
      const PlacedBox& box = layout.part(part);
      out.parts.push_back(
          {f->tensor, f->box, indices_at(f->where.offset, out.shape), box.dims, box.gaps});
    }
  return out;
}

/// The ids of a file's tensors in the model that the layout is for.
class ModelIds {
 public:
  ModelIds(const ModelSpec& from, const ModelSpec& to) : from_(from), to_(to) {}

  Result<TensorId> of(TensorId id) const {
    const CanonicalTensor& t = from_[id];
    const auto found = to_.find(t.name);
    if (!found) return fail(Code::not_found, fmt::format("the model has no tensor '{}'", t.name));
    const CanonicalTensor& m = to_[*found];
    if (t.shape == m.shape && t.dtype == m.dtype && t.merged == m.merged) return *found;
    return fail(
        Code::invalid_argument,
        fmt::format("tensor '{}' is {} {}, but {} {} in the model", t.name, reshard::name(t.dtype),
                    to_string(t.shape), reshard::name(m.dtype), to_string(m.shape)));
  }

 private:
  const ModelSpec& from_;
  const ModelSpec& to_;
};

RankSet moved_up(const RankSet& ranks, Index by) {
  if (by == 0) return ranks;
  RankSet out;
  ranks.for_each([&](Rank r) { out.insert(Rank(static_cast<Rank::rep>(r.value() + by))); });
  return out;
}

}  // namespace

ExplicitLayout explicit_tensors(const ModelLayout& layout) {
  ExplicitLayout out{layout.name(), layout.shared_model(), layout.ranks(), {}, {}};
  for (Index i = 0; i < layout.model().size(); ++i)
    if (const TensorId id(static_cast<TensorId::rep>(i)); layout.omits(id))
      out.omitted.push_back(id);
  ExplicitTensors distinct;
  layout.ranks().for_each([&](Rank r) {
    RankSet one;
    one.insert(r);
    for (SlotId id : layout.slots_of(r)) distinct.add(one, local_tensor(layout, id, r));
  });
  for (auto& entry : std::move(distinct).take())
    out.locals.push_back({std::move(entry.ranks), std::move(entry.tensor)});
  return out;
}

Result<ModelLayout> explicit_layout(const LayoutSpec& spec, const FamilyInput& input,
                                    const ExplicitLayout& layout) {
  RESHARD_TRY(spec.check_keys({"offset"}));
  const Index offset = RESHARD_TRY(spec.integer("offset", 0, 0));
  const std::vector<Rank> ranks = layout.ranks.members();
  if (!ranks.empty() && ranks.back().value() + offset >= kMaxExplicitRanks)
    return fail(Code::invalid_argument, fmt::format("{}: offset={} moves ranks beyond {}",
                                                    spec.family, offset, kMaxExplicitRanks - 1));
  LayoutBuilder builder(spec.file.empty() ? layout.name : to_string(spec), input.model);
  ExplicitSlots slots(builder);
  slots.add_ranks(moved_up(layout.ranks, offset));
  const ModelIds ids(*layout.tensors, *input.model);
  for (TensorId id : layout.omitted) builder.omit(RESHARD_TRY(ids.of(id)));
  families::LocalNames names;
  for (const ExplicitLayout::Local& local : layout.locals) {
    const RankSet held = moved_up(local.ranks, offset);
    RESHARD_TRY(names.take(local.tensor.name, held));
    ExplicitTensor tensor = local.tensor;
    for (PlacedBox& part : tensor.parts) part.tensor = RESHARD_TRY(ids.of(part.tensor));
    slots.add(held, std::move(tensor));
  }
  slots.finish();
  return std::move(builder).finish();
}

}  // namespace reshard
