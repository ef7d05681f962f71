// SPDX-License-Identifier: Apache-2.0
// Protects: what ranks hold of full tensors is put into boxes of the model's tensors, element by
// element.
#include "reshard/model/reported/full_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "reshard/model/configs_testutil.h"
#include "reshard/model/layout_builder.h"

namespace reshard {
namespace {

using ::testing::HasSubstr;

/// The elements of a local tensor: the canonical tensor and element of each; none: padding.
using Elements = std::vector<std::optional<std::pair<TensorId, Index>>>;

Elements elements_of(const LocalTensor& local, const ModelSpec& model) {
  Elements out(static_cast<std::size_t>(volume(local.shape)));
  for (const Fragment& f : local.fragments) {
    const Dims strides = row_major(model[f.tensor].shape);
    for (Index i = 0; i < f.box.volume(); ++i) {
      Index rest = i, canonical = 0, here = f.where.offset;
      for (int d = f.box.rank() - 1; d >= 0; --d) {
        const Index at = rest % f.box[d].size();
        rest /= f.box[d].size();
        canonical += (f.box[d].begin() + at) * strides[d];
        here += at * f.where.strides[d];
      }
      EXPECT_FALSE(out[static_cast<std::size_t>(here)]) << "two boxes in one element";
      out[static_cast<std::size_t>(here)] = std::pair(f.tensor, canonical);
    }
  }
  return out;
}

/// The elements of a full tensor at these runs.
Elements at_runs(const Elements& full, const ReportedTensor& held) {
  std::vector<Index> flat{0};
  for (int d = 0; d < held.shape.size(); ++d) {
    std::vector<Index> next;
    for (const Index head : flat)
      for (const Interval& run : held.runs[static_cast<std::size_t>(d)])
        for (Index i = run.begin(); i < run.end(); ++i) next.push_back(head * held.shape[d] + i);
    flat = std::move(next);
  }
  Elements out;
  for (const Index i : flat) out.push_back(full[static_cast<std::size_t>(i)]);
  return out;
}

/// Some runs of a dimension, disjoint, in any order.
std::vector<Interval> any_runs(Index size) {
  std::vector<Index> cuts{0, size};
  const int more = *rc::gen::inRange(0, 4);
  for (int i = 0; i < more; ++i) cuts.push_back(*rc::gen::inRange<Index>(0, size + 1));
  std::ranges::sort(cuts);
  std::vector<Interval> runs;
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i)
    if (*rc::gen::inRange(0, 3) > 0) runs.emplace_back(cuts[i], cuts[i + 1]);
  if (*rc::gen::inRange(0, 2) == 1) std::ranges::reverse(runs);
  return runs;
}

ReportedTensor any_part(const std::string& whole, const Dims& shape, DType dtype) {
  ReportedTensor held{
      .name = "local." + whole, .whole = whole, .dtype = dtype, .shape = shape, .runs = {}};
  for (const Index n : shape) held.runs.push_back(any_runs(n));
  return held;
}

/// Checks a layout of random parts of the full tensors of a layout of one rank.
void check_parts(const ModelLayout& full, FullTensors& tensors) {
  std::vector<RankTensors> ranks{{Rank(3), {}}, {Rank(5), {}}};
  const auto slots = full.slots_of(Rank(0));
  for (RankTensors& here : ranks)
    for (const SlotId slot : slots)
      if (*rc::gen::inRange(0, 2) == 0)
        here.tensors.push_back(any_part(full.slot(slot).name, full.stored_shape(slot, Rank(0)),
                                        full.slot(slot).dtype));
  const auto layout = tensors.layout("parts", ranks, "");
  RC_ASSERT(layout.has_value());
  RC_ASSERT(layout->ranks().members() == (std::vector<Rank>{Rank(3), Rank(5)}));
  for (const RankTensors& here : ranks) {
    std::map<std::string, Elements> found;
    for (const SlotId slot : layout->slots_of(here.rank))
      found[layout->slot(slot).name] = elements_of(layout->local(slot, here.rank), full.model());
    RC_ASSERT(found.size() == here.tensors.size());
    for (const ReportedTensor& held : here.tensors)
      for (const SlotId slot : slots)
        if (full.slot(slot).name == held.whole)
          RC_ASSERT(found.at(held.name) ==
                    at_runs(elements_of(full.local(slot, Rank(0)), full.model()), held));
  }
}

RC_GTEST_PROP(FullTensors, of_a_framework_are_cut_anywhere, ()) {
  const ModelConfig config = *rc::gen::elementOf(
      std::vector<ModelConfig>{tiny_dense(), tiny_gpt_oss(), tiny_qwen3_next()});
  const auto model = model_of(config);
  const auto full = layout_of("megatron:tp=1", model, config);
  FullTensors tensors("tiny", model);
  tensors.add(full);
  check_parts(*full, tensors);
}

RC_GTEST_PROP(FullTensors, of_the_model_itself_are_cut_anywhere, ()) {
  auto model = std::make_shared<ModelSpec>();
  RC_ASSERT(model->add("a", {4, 3}, DType::bf16).has_value());
  RC_ASSERT(model->add("b", {2, 3, 2}, DType::f32, MergedDims{2}).has_value());  // stored [2, 6]
  RC_ASSERT(model->add("c", {5}, DType::f32).has_value());
  RC_ASSERT(model->add("d", {}, DType::f32).has_value());
  LayoutBuilder builder("whole", model);
  const MeshId mesh = builder.add_mesh(*Mesh::make({{"one", 1}}, Rank(0)));
  RankSet one;
  one.insert(Rank(0));
  const RankSetId ranks = builder.add_ranks(one);
  for (Index i = 0; i < model->size(); ++i) {
    const TensorId id(static_cast<TensorId::rep>(i));
    const CanonicalTensor& t = (*model)[id];
    builder.add(Slot{.name = t.name,
                     .dtype = t.dtype,
                     .mesh = mesh,
                     .ranks = ranks,
                     .sections = {whole_tensor(*model, id)},
                     .merged = t.merged});
  }
  const auto full = std::move(builder).finish();
  RC_ASSERT(full.has_value());
  FullTensors tensors("own", model);
  check_parts(*full, tensors);
}

TEST(FullTensors, that_are_not_there_or_have_another_shape_are_named) {
  auto model = std::make_shared<ModelSpec>();
  ASSERT_TRUE(model->add("a", {4}, DType::bf16));
  const FullTensors tensors("m", model);
  EXPECT_TRUE(tensors.contains("a"));
  EXPECT_FALSE(tensors.contains("b"));
  const auto error = [&](ReportedTensor held) {
    const std::vector<RankTensors> ranks{{Rank(2), {std::move(held)}}};
    const auto layout = tensors.layout("x", ranks, "rename it");
    return layout ? std::string() : layout.error().message;
  };
  const std::vector<std::vector<Interval>> all{{Interval{0, 4}}}, more{{Interval{0, 5}}};
  EXPECT_EQ(error({"a", "a", DType::bf16, {4}, all}), "");
  EXPECT_EQ(error({"here", "b", DType::bf16, {4}, all}),
            "rank 2: the model 'm' has no tensor 'b' (local name 'here'); rename it");
  EXPECT_EQ(error({"a", "a", DType::bf16, {5}, more}),
            "'a': the full tensor 'a' has shape [5], but the model says [4]");
  EXPECT_THAT(error({"a", "a", DType::bf16, {4}, more}), HasSubstr("not inside"));
  EXPECT_THAT(error({"a", "a", DType::bf16, {4}, {}}), HasSubstr("not inside"));
}

}  // namespace
}  // namespace reshard
