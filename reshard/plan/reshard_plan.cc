// SPDX-License-Identifier: Apache-2.0
#include "reshard/plan/reshard_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include "reshard/base/check.h"
#include "reshard/plan/locate.h"

namespace reshard {
namespace {

/// A box of a canonical tensor as a slice of one local tensor.
struct Sliced {
  SlotId slot;
  Box slice;
};

/// The box [begin, begin + size) of a row-major index space as a box of the same space with merged
/// dimensions; none where it is several.
std::optional<Box> merged_box(const Dims& begin, const Dims& size, const Dims& shape,
                              MergedDims merged) {
  std::vector<Interval> dims;
  for (int first = 0; first < shape.size();) {
    int last = first;
    while (last + 1 < shape.size() && (merged.bits >> last & 1) != 0) ++last;
    Index at = 0, length = 1;
    bool is_long = false;
    for (int k = first; k <= last; ++k) {
      if (is_long && size[k] != shape[k]) return std::nullopt;
      is_long |= size[k] > 1;
      at = at * shape[k] + begin[k];
      length *= size[k];
    }
    dims.emplace_back(at, at + length);
    first = last + 1;
  }
  return Box(dims);
}

/// What a canonical box is at one place of a rank's local tensors, or none where it is not held
/// there as one slice; `held` says whether it is held there at all.
std::optional<Sliced> slice_at(const ModelLayout& layout, const ModelLayout::Place& place, Rank r,
                               const Box& box, bool& held) {
  const auto found = layout.fragment(place, r);
  held = found && contains(found->box, box);
  if (!held) return std::nullopt;
  Dims inside;
  for (int i = 0; i < box.rank(); ++i) inside.push_back(box[i].begin() - found->box[i].begin());
  const Dims shape = layout.local_shape(place.slot, r), strides = row_major(shape);
  Index rest = at(found->where, inside).offset;
  Dims begin, size = Dims::filled(shape.size(), 1);
  for (int k = 0; k < shape.size(); ++k) {
    begin.push_back(rest / strides[k]);
    rest %= strides[k];
  }
  const PlacedBox& placed = layout.placed(place);
  for (int i = 0; i < box.rank(); ++i)
    if (placed.step(i) != 1 && box[i].size() > 1) return std::nullopt;
  for (int i = 0; i < box.rank(); ++i)
    size[placed.dims[static_cast<std::size_t>(i)]] = box[i].size();
  const auto slice = merged_box(begin, size, shape, layout.slot(place.slot).merged);
  if (!slice) return std::nullopt;
  return Sliced{place.slot, *slice};
}

/// One operation as its destination sees it.
struct Delivery {
  Rank src;
  Sliced from, to;
};

/// All operations of one destination, in the order that gives their task ids.
class Deliveries {
 public:
  Deliveries(const Planner& planner, Rank dst) : planner_(planner), dst_(dst) {
    planner.for_each_delivery(dst, [&](const Transfer& t) { add(t.tensor, t.src, t.box); });
    std::sort(all.begin(), all.end(), [](const Delivery& a, const Delivery& b) {
      if (a.to.slot != b.to.slot) return a.to.slot < b.to.slot;
      if (!(a.to.slice == b.to.slice)) return before(a.to.slice, b.to.slice);
      return a.src < b.src;
    });
  }

  std::vector<Delivery> all;

 private:
  /// The box as one operation for each destination place, or its parts along the first dimension
  /// that has any.
  void add(TensorId tensor, Rank src, const Box& box) {
    std::optional<Sliced> from;
    bool held = false;
    for (const auto& place : planner_.source().places(tensor)) {
      from = slice_at(planner_.source(), place, src, box, held);
      if (held) break;
    }
    std::vector<Sliced> to;
    bool whole = from.has_value();
    for (const auto& place : planner_.target().places(tensor)) {
      const auto slice = slice_at(planner_.target(), place, dst_, box, held);
      if (held && !slice) whole = false;
      if (slice) to.push_back(*slice);
    }
    if (whole) {
      for (const Sliced& s : to) all.push_back({src, *from, s});
      return;
    }
    int dim = 0;
    while (dim < box.rank() && box[dim].size() == 1) ++dim;
    RESHARD_CHECK(dim < box.rank());
    for (Index i = box[dim].begin(); i < box[dim].end(); ++i)
      add(tensor, src, box.with(dim, Interval{i, i + 1}));
  }

  const Planner& planner_;
  Rank dst_;
};

std::int64_t task_id(Rank dst, std::size_t i) {
  return (static_cast<std::int64_t>(dst.value()) << 32) + static_cast<std::int64_t>(i);
}

TransferOp receive(const Planner& p, Rank dst, const Delivery& d, std::size_t i) {
  return {p.target().slot(d.to.slot).name, d.src, false, d.to.slice, d.from.slice, task_id(dst, i)};
}

TransferOp send(const Planner& p, Rank dst, const Delivery& d, std::size_t i) {
  return {p.source().slot(d.from.slot).name, dst, true, d.from.slice, d.to.slice, task_id(dst, i)};
}

void note_dtype(const Planner& p, const Delivery& d, ReshardPlan& plan) {
  const Slot &from = p.source().slot(d.from.slot), &to = p.target().slot(d.to.slot);
  if (from.dtype != to.dtype) plan.buffer_dtypes.emplace(to.name, from.dtype);
}

}  // namespace

std::string to_string(const ReshardPlan& plan) {
  return fmt::format("ReshardPlan(sends={}, recvs={})", plan.send_ops.size(), plan.recv_ops.size());
}

ReshardPlan replayed_reshard_plan(const Planner& planner, Rank r) {
  ReshardPlan plan;
  std::vector<Rank> to{r};
  for (const Transfer& t : planner.rank_plan(r).sends)
    if (to.back() != t.dst) to.push_back(t.dst);
  std::sort(to.begin(), to.end());
  for (Rank dst : to) {
    const Deliveries deliveries(planner, dst);
    for (std::size_t i = 0; i < deliveries.all.size(); ++i) {
      const Delivery& d = deliveries.all[i];
      if (dst == r) {
        plan.recv_ops.push_back(receive(planner, dst, d, i));
        note_dtype(planner, d, plan);
      }
      if (d.src == r) plan.send_ops.push_back(send(planner, dst, d, i));
    }
  }
  return plan;
}

std::map<Rank, ReshardPlan> centralized_reshard_plans(const Planner& planner) {
  std::map<Rank, ReshardPlan> plans;
  planner.ranks().for_each([&](Rank r) { plans[r]; });
  planner.ranks().for_each([&](Rank dst) {
    const Deliveries deliveries(planner, dst);
    for (std::size_t i = 0; i < deliveries.all.size(); ++i) {
      const Delivery& d = deliveries.all[i];
      plans[dst].recv_ops.push_back(receive(planner, dst, d, i));
      note_dtype(planner, d, plans[dst]);
      plans[d.src].send_ops.push_back(send(planner, dst, d, i));
    }
  });
  return plans;
}

}  // namespace reshard
