// SPDX-License-Identifier: Apache-2.0
#include "reshard/plan/reshard_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>

#include "reshard/base/bytes.h"
#include "reshard/base/check.h"
#include "reshard/plan/locate.h"

namespace reshard {
namespace {

/// A box of a canonical tensor as a slice of one local tensor.
struct Sliced {
  SlotId slot;
  Box slice;
};

/// The box [begin, begin + size) of a row-major index space in the space with merged dimensions;
/// none if it becomes several boxes.
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

/// A canonical box as a slice of a local tensor, at one part of the layout; none if the rank does
/// not hold it there as one slice. `held`: whether the rank holds it there at all.
std::optional<Sliced> slice_at(const ModelLayout& layout, const PartId& part_id, Rank r,
                               const Box& box, bool& held) {
  const auto found = layout.fragment(part_id, r);
  held = found && contains(found->box, box);
  if (!held) return std::nullopt;
  Dims inside;
  for (int i = 0; i < box.rank(); ++i) inside.push_back(box[i].begin() - found->box[i].begin());
  const Dims shape = layout.local_shape(part_id.slot, r), strides = row_major(shape);
  Index rest = at(found->where, inside).offset;
  Dims begin, size = Dims::filled(shape.size(), 1);
  for (int k = 0; k < shape.size(); ++k) {
    begin.push_back(rest / strides[k]);
    rest %= strides[k];
  }
  const PlacedBox& placed = layout.part(part_id);
  for (int i = 0; i < box.rank(); ++i)
    if (placed.step(i) != 1 && box[i].size() > 1) return std::nullopt;
  for (int i = 0; i < box.rank(); ++i)
    size[placed.dims[static_cast<std::size_t>(i)]] = box[i].size();
  const auto slice = merged_box(begin, size, shape, layout.slot(part_id.slot).merged);
  if (!slice) return std::nullopt;
  return Sliced{part_id.slot, *slice};
}

/// One operation, seen from its destination.
struct Delivery {
  Rank src;
  Sliced from, to;
};

/// The operations of one destination, in the order of their task ids.
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
  /// Adds one operation per destination location, or splits the box along its first dimension of
  /// more than one index.
  void add(TensorId tensor, Rank src, const Box& box) {
    std::optional<Sliced> from;
    bool held = false;
    for (const auto& part_id : planner_.source().parts_of(tensor)) {
      from = slice_at(planner_.source(), part_id, src, box, held);
      if (held) break;
    }
    std::vector<Sliced> to;
    bool whole = from.has_value();
    for (const auto& part_id : planner_.target().parts_of(tensor)) {
      const auto slice = slice_at(planner_.target(), part_id, dst_, box, held);
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

// The binary form: a version, the names once each, then both lists of operations, then the dtypes.
namespace {

constexpr std::uint64_t kVersion = 1;
constexpr std::size_t kMaxName = 1 << 16;
constexpr std::uint64_t kMaxIndex = std::uint64_t{1} << 60;
constexpr int kNumDTypes = static_cast<int>(kLastDType) + 1;

void write(ByteWriter& w, const Box& box) {
  w.number(static_cast<std::uint64_t>(box.rank()));
  for (int i = 0; i < box.rank(); ++i) {
    w.number(static_cast<std::uint64_t>(box[i].begin()));
    w.number(static_cast<std::uint64_t>(box[i].size()));
  }
}

Box read_box(ByteReader& r) {
  std::vector<Interval> dims;
  const std::uint64_t rank = r.number(kMaxDims, "a slice's dimensions");
  for (std::uint64_t i = 0; i < rank; ++i) {
    const auto begin = static_cast<Index>(r.number(kMaxIndex, "a slice's begin"));
    const auto size = static_cast<Index>(r.number(kMaxIndex, "a slice's length"));
    dims.emplace_back(begin, begin + size);
  }
  return Box(dims);
}

using Names = std::map<std::string, std::uint64_t>;

void write(ByteWriter& w, const std::vector<TransferOp>& ops, const Names& names) {
  w.number(ops.size());
  std::int64_t before = 0;
  for (const TransferOp& op : ops) {
    w.number(names.at(op.param_name));
    w.number(static_cast<std::uint64_t>(op.peer_rank.value()));
    write(w, op.my_slice);
    write(w, op.peer_slice);
    w.number(static_cast<std::uint64_t>(op.task_id - before));
    before = op.task_id;
  }
}

std::vector<TransferOp> read_ops(ByteReader& r, const std::vector<std::string>& names, bool sends) {
  std::vector<TransferOp> ops;
  const std::size_t n = r.count(5, "the number of operations");
  if (n > 0 && names.empty()) r.fail("operations without names");
  std::int64_t task = 0;
  for (std::size_t i = 0; i < n && r.ok(); ++i) {
    TransferOp op;
    op.param_name = names[r.number(names.size() - 1, "a name's number")];
    op.peer_rank = Rank(
        static_cast<Rank::rep>(r.number(std::numeric_limits<Rank::rep>::max(), "a peer's rank")));
    op.is_send = sends;
    op.my_slice = read_box(r);
    op.peer_slice = read_box(r);
    const auto most = std::numeric_limits<std::int64_t>::max() - task;
    task += static_cast<std::int64_t>(r.number(static_cast<std::uint64_t>(most), "a task id"));
    op.task_id = task;
    ops.push_back(std::move(op));
  }
  return ops;
}

}  // namespace

std::vector<std::byte> encode_reshard_plan(const ReshardPlan& plan) {
  Names names;
  for (const auto* ops : {&plan.send_ops, &plan.recv_ops})
    for (const TransferOp& op : *ops) names.emplace(op.param_name, 0);
  for (const auto& [name, dtype] : plan.buffer_dtypes) names.emplace(name, 0);
  ByteWriter w;
  w.number(kVersion);
  w.number(names.size());
  std::uint64_t next = 0;
  for (auto& [name, id] : names) {
    id = next++;
    w.text(name);
  }
  write(w, plan.send_ops, names);
  write(w, plan.recv_ops, names);
  w.number(plan.buffer_dtypes.size());
  for (const auto& [name, dtype] : plan.buffer_dtypes) {
    w.number(names.at(name));
    w.number(static_cast<std::uint64_t>(dtype));
  }
  return std::move(w).finish();
}

Result<ReshardPlan> decode_reshard_plan(std::span<const std::byte> bytes) {
  ByteReader r(bytes, "reshard plan");
  if (const auto version = r.number(kMaxIndex, "the version"); r.ok() && version != kVersion)
    r.fail("unknown version");
  std::vector<std::string> names;
  const std::size_t n = r.count(1, "the number of names");
  for (std::size_t i = 0; i < n && r.ok(); ++i) names.emplace_back(r.text(kMaxName, "a name"));
  ReshardPlan plan;
  plan.send_ops = read_ops(r, names, true);
  plan.recv_ops = read_ops(r, names, false);
  const std::size_t dtypes = r.count(2, "the number of dtypes");
  if (dtypes > 0 && names.empty()) r.fail("dtypes without names");
  for (std::size_t i = 0; i < dtypes && r.ok(); ++i) {
    const auto id = r.number(names.size() - 1, "a name's number");
    plan.buffer_dtypes[names[id]] = static_cast<DType>(r.number(kNumDTypes - 1, "a dtype"));
  }
  RESHARD_TRY(r.finish());
  return plan;
}

}  // namespace reshard
