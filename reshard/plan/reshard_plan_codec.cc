// SPDX-License-Identifier: Apache-2.0
// A version, the names once each, then both lists of operations, then the dtypes.
#include <algorithm>
#include <limits>

#include "reshard/base/bytes.h"
#include "reshard/plan/reshard_plan.h"

namespace reshard {
namespace {

constexpr std::uint64_t kVersion = 1;
constexpr std::size_t kMaxName = 1 << 16;
constexpr std::uint64_t kMaxIndex = std::uint64_t{1} << 60;
constexpr int kNumDTypes = static_cast<int>(DType::u64) + 1;

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
    r.fail("another version");
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
