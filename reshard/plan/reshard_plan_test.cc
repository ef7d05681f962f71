// SPDX-License-Identifier: Apache-2.0
// Protects: planning for all ranks and for one rank give the same operations, and executing them as
// slices of named parameters delivers every element.
#include "reshard/plan/reshard_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <set>

#include "reshard/model/configs_testutil.h"
#include "reshard/model/elements_testutil.h"
#include "reshard/model/random_layout_testutil.h"
#include "reshard/model/reported/gathered.h"
#include "reshard/model/reported/metadata_testutil.h"

namespace reshard {
namespace {

/// The tensor and canonical index of each element of a rank's local tensors, by tensor name and
/// stored position; {-1, 0} for padding.
using Contents = std::map<std::string, std::vector<std::pair<int, Index>>>;

Contents contents(const ModelLayout& layout, Rank r) {
  Contents out;
  for (SlotId id : layout.slots_of(r)) {
    const LocalTensor t = layout.local(id, r);
    auto& elements = out[layout.slot(id).name];
    elements.assign(static_cast<std::size_t>(volume(t.shape)), {-1, 0});
    for (const Fragment& f : t.fragments) {
      for_each_element(layout.model(), f, [&](Index canonical, Index local) {
        elements[static_cast<std::size_t>(local)] = {f.tensor.value(), canonical};
      });
    }
  }
  return out;
}

Dims shape_of(const ModelLayout& layout, Rank r, const std::string& name) {
  for (SlotId id : layout.slots_of(r))
    if (layout.slot(id).name == name) return layout.stored_shape(id, r);
  return {};
}

/// Calls f(position) for each element of a slice of a row-major tensor, in order.
template <class F>
void for_each_position(const Dims& shape, const Box& slice, F&& f) {
  const Dims strides = row_major(shape);
  for (Index i = 0; i < slice.volume(); ++i) {
    Index rest = i, at = 0;
    for (int d = slice.rank() - 1; d >= 0; --d) {
      at += (slice[d].begin() + rest % slice[d].size()) * strides[d];
      rest /= slice[d].size();
    }
    f(static_cast<std::size_t>(at));
  }
}

/// Checks all that a plan promises; the text says what is wrong, empty when nothing is.
std::string problem_of(const Planner& planner) {
  const auto all = centralized_reshard_plans(planner);
  std::map<std::int64_t, std::pair<Rank, const TransferOp*>> sends;
  for (const auto& [r, plan] : all) {
    if (!(replayed_reshard_plan(planner, r) == plan)) return "replayed plans differ";
    const auto back = decode_reshard_plan(encode_reshard_plan(plan));
    if (!back || !(*back == plan)) return "a plan does not come back from its bytes";
    for (const TransferOp& op : plan.send_ops)
      if (!op.is_send || !sends.emplace(op.task_id, std::pair(r, &op)).second)
        return "a task id is sent twice";
  }
  std::int64_t before = -1;
  std::size_t received = 0;
  for (const auto& [r, plan] : all) {
    Contents mine = contents(planner.target(), r);
    std::map<std::string, std::vector<bool>> written;
    for (const auto& [name, elements] : mine) written[name].resize(elements.size());
    for (const TransferOp& op : plan.recv_ops) {
      ++received;
      if (op.is_send || op.task_id <= before) return "task ids do not ascend";
      before = op.task_id;
      const auto it = sends.find(op.task_id);
      if (it == sends.end() || it->second.first != op.peer_rank) return "nobody sends a task";
      const TransferOp& sent = *it->second.second;
      if (sent.peer_rank != r || !(sent.my_slice == op.peer_slice) ||
          !(sent.peer_slice == op.my_slice))
        return "both sides of a task differ";
      const Contents theirs = contents(planner.source(), op.peer_rank);
      std::vector<std::pair<int, Index>> values;
      for_each_position(shape_of(planner.source(), op.peer_rank, sent.param_name), op.peer_slice,
                        [&](std::size_t i) { values.push_back(theirs.at(sent.param_name)[i]); });
      std::size_t next = 0;
      std::string wrong;
      for_each_position(shape_of(planner.target(), r, op.param_name), op.my_slice,
                        [&](std::size_t i) {
                          if (written[op.param_name][i]) wrong = "an element is written twice";
                          written[op.param_name][i] = true;
                          if (mine[op.param_name][i] != values[next++])
                            wrong = "an element comes from another";
                        });
      if (!wrong.empty()) return wrong + ": " + op.param_name;
    }
    for (const auto& [name, elements] : mine)
      for (std::size_t i = 0; i < elements.size(); ++i)
        if ((elements[i].first >= 0) != written[name][i]) return "not all is written: " + name;
  }
  return received == sends.size() ? "" : "a task is sent and not received";
}

RC_GTEST_PROP(ReshardPlan, planning_alone_and_for_all_is_the_same, ()) {
  const auto model = random_model();
  const auto source = random_layout(model), target = random_layout(model);
  const auto planner = Planner::make(source, target);
  RC_ASSERT(planner.has_value());
  RC_ASSERT(problem_of(*planner) == "");
}

struct Case {
  const char *from, *to;
  bool moe;
};

class MegatronRefit : public ::testing::TestWithParam<Case> {};

TEST_P(MegatronRefit, delivers_by_slices_of_named_parameters) {
  const auto [from, to, moe] = GetParam();
  const ModelConfig c = moe ? tiny_moe() : tiny_dense();
  const auto model = model_of(c);
  const auto source = layout_of(from, model, c), target = layout_of(to, model, c);
  const auto closed = Planner::make(source, target);
  ASSERT_TRUE(closed.has_value()) << closed.error().message;
  EXPECT_EQ(problem_of(*closed), "");
  const auto pair = gathered_layouts(reported_by(*source, c), reported_by(*target, c));
  ASSERT_TRUE(pair.has_value()) << pair.error().message;
  const auto gathered = Planner::make(pair->source, pair->target, {pair->ignore});
  ASSERT_TRUE(gathered.has_value()) << gathered.error().message;
  EXPECT_EQ(problem_of(*gathered), "");
}

constexpr Case kCases[] = {
    {"megatron:tp=1,vocab_multiple=4", "megatron:tp=2,vocab_multiple=2", false},
    {"megatron:tp=4,vocab_multiple=1", "megatron:tp=2,vocab_multiple=2,offset=2", false},
    {"megatron:pp=2,vocab_multiple=4", "megatron:pp=1,vocab_multiple=4", false},
    {"megatron:tp=2,pp=2,vocab_multiple=2", "megatron:tp=1,vocab_multiple=4,offset=8", false},
    {"megatron:ep=2,vocab_multiple=4", "megatron:ep=1,vocab_multiple=4", true},
    {"megatron:tp=2,ep=2,etp=1,vocab_multiple=2", "megatron:ep=5,vocab_multiple=4", true},
};

INSTANTIATE_TEST_SUITE_P(Pairs, MegatronRefit, ::testing::ValuesIn(kCases));

TEST(ReshardPlan, says_how_many_operations_it_has) {
  ReshardPlan plan;
  plan.recv_ops.resize(2);
  EXPECT_EQ(to_string(plan), "ReshardPlan(sends=0, recvs=2)");
}

TEST(ReshardPlan, bytes_that_end_early_are_refused) {
  ReshardPlan plan;
  plan.send_ops.push_back({"w", Rank(3), true, Box{{0, 2}}, Box{{4, 6}}, 7});
  plan.buffer_dtypes["b"] = DType::f32;
  const auto bytes = encode_reshard_plan(plan);
  EXPECT_EQ(*decode_reshard_plan(bytes), plan);
  for (std::size_t n = 0; n < bytes.size(); ++n)
    EXPECT_FALSE(decode_reshard_plan(std::span(bytes).first(n)).has_value()) << n;
}

}  // namespace
}  // namespace reshard
