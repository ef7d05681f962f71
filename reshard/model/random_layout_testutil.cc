// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/random_layout_testutil.h"

#include <rapidcheck.h>

#include "reshard/base/check.h"
#include "reshard/model/layout_builder.h"

namespace reshard {
namespace {

Index any(Index begin, Index end) { return *rc::gen::inRange<Index>(begin, end); }

DimCut random_cut(std::vector<int>& free_axes) {
  DimCut how;
  const Index n = any(0, std::min<Index>(3, static_cast<Index>(free_axes.size()) + 1));
  for (Index i = 0; i < n; ++i) {
    const auto at = static_cast<std::size_t>(any(0, static_cast<Index>(free_axes.size())));
    how.axes[static_cast<std::size_t>(how.num_axes++)] = static_cast<std::int8_t>(free_axes[at]);
    free_axes.erase(free_axes.begin() + static_cast<std::ptrdiff_t>(at));
  }
  how.rule = *rc::gen::element(CutRule::balanced, CutRule::ceil, CutRule::spread);
  how.combine = *rc::gen::element(DimCut::Combine::sequential, DimCut::Combine::flattened);
  how.granule = any(1, 3);
  return how;
}

/// One tensor alone in a slot, cut at random, perhaps padded along dimension 0, perhaps at one
/// coordinate only.
void add_single(LayoutBuilder& b, MeshId mesh, TensorId id, const std::string& name,
                StoredForm form) {
  const CanonicalTensor& t = b.model()[id];
  Section section;
  section.extent = t.shape;
  const bool padded = t.shape.size() > 0 && any(0, 3) == 0;
  if (padded) section.extent[0] += any(1, 4);
  std::vector<int> axes;
  for (int i = 0; i < static_cast<int>(b.mesh(mesh).axes().size()); ++i) axes.push_back(i);
  for (int d = 0; d < section.extent.size(); ++d)
    section.cuts[static_cast<std::size_t>(d)] = b.add_cut(random_cut(axes));
  place(section, id, Box::whole(t.shape), Dims::filled(t.shape.size(), 0));
  RankSetId ranks = b.ranks_where(mesh, {});
  if (!axes.empty() && any(0, 2) == 0)
    ranks = b.ranks_where(
        mesh, {{axes[0], any(0, b.mesh(mesh).axes()[static_cast<std::size_t>(axes[0])].size)}});
  b.add(Slot{name, form.dtype, mesh, ranks, 0, padded, {section}, {}, form.map, true});
}

/// Several matrices of equal width stacked in one slot on all ranks, each cut on rows over the
/// first axis.
void add_stacked(LayoutBuilder& b, MeshId mesh, const std::vector<TensorId>& ids, StoredForm form) {
  std::vector<Section> sections;
  for (TensorId id : ids) sections.push_back(whole_tensor(b.model(), id, {b.add_cut(cut_over(0))}));
  b.add(Slot{"stacked",
             form.dtype,
             mesh,
             b.ranks_where(mesh, {}),
             0,
             false,
             std::move(sections),
             {},
             form.map,
             true});
}

StoredForm random_form(DType dtype, RandomForms forms) {
  if (forms == RandomForms::as_they_are || !is_convertible(dtype))
    return {dtype, ValueMap::identity};
  return {*rc::gen::element(DType::bf16, DType::f32, DType::f16),
          *rc::gen::element(ValueMap::identity, ValueMap::identity, ValueMap::negated_exp,
                            ValueMap::plus_one, ValueMap::minus_one)};
}

}  // namespace

std::shared_ptr<const ModelSpec> random_model() {
  auto model = std::make_shared<ModelSpec>();
  const Index n = any(1, 5);
  for (Index i = 0; i < n; ++i) {
    Dims shape;
    const Index rank = any(0, 4);
    for (Index d = 0; d < rank; ++d) shape.push_back(any(1, 7));
    const DType dtype = *rc::gen::element(DType::u8, DType::bf16);
    RESHARD_CHECK(model->add("t" + std::to_string(i), shape, dtype).has_value());
  }
  return model;
}

std::shared_ptr<const ModelSpec> random_matrices() {
  auto model = std::make_shared<ModelSpec>();
  const Index n = any(1, 4);
  for (Index i = 0; i < n; ++i) {
    Dims shape;
    if (any(0, 3) == 0) shape.push_back(any(1, 4));
    shape.push_back(any(1, 10));
    shape.push_back(*rc::gen::element<Index>(3, 6, 6, 8));
    RESHARD_CHECK(model->add("t" + std::to_string(i), shape, DType::bf16).has_value());
  }
  return model;
}

std::shared_ptr<const ModelLayout> random_layout(std::shared_ptr<const ModelSpec> model,
                                                 RandomForms forms) {
  std::vector<Axis> axes;
  Index size = 1;
  for (const char* name : {"a", "b", "c"}) {
    axes.push_back({name, any(1, 12 / size + 1 > 4 ? 4 : 12 / size + 1)});
    size *= axes.back().size;
  }
  LayoutBuilder b("random", model);
  const MeshId mesh = b.add_mesh(*Mesh::make(axes, Rank(static_cast<Rank::rep>(any(0, 6)))));
  std::vector<TensorId> stacked;
  StoredForm stacked_form;
  for (Index t = 0; t < model->size(); ++t) {
    const TensorId id(static_cast<TensorId::rep>(t));
    const CanonicalTensor& tensor = (*model)[id];
    const bool fits = stacked.empty() || ((*model)[stacked[0]].shape[1] == tensor.shape[1] &&
                                          (*model)[stacked[0]].dtype == tensor.dtype);
    StoredForm form = random_form(tensor.dtype, forms);
    if (tensor.shape.size() == 2 && fits && any(0, 2) == 0) {
      if (stacked.empty()) stacked_form = form;
      form = stacked_form;
      stacked.push_back(id);
      if (any(0, 3) > 0) continue;
    }
    const Index copies = any(1, 3);
    for (Index c = 0; c < copies; ++c)
      add_single(b, mesh, id, tensor.name + "." + std::to_string(c), form);
  }
  if (!stacked.empty()) add_stacked(b, mesh, stacked, stacked_form);
  auto layout = std::move(b).finish();
  RESHARD_CHECK(layout.has_value());
  return std::make_shared<const ModelLayout>(*std::move(layout));
}

}  // namespace reshard
