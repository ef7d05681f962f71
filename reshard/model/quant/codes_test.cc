// SPDX-License-Identifier: Apache-2.0
// Protects: the part of a weight at a place of a rank is the part for the weight's elements there,
// however the layout cuts, fuses and repeats it; what cuts a word or a group is refused by name.
#include "reshard/model/quant/codes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "reshard/model/configs_testutil.h"
#include "reshard/model/elements_testutil.h"
#include "reshard/model/quant/notation.h"

namespace reshard {
namespace {

using ::testing::HasSubstr;
using Role = CodePart::Role;

/// Units in which the codes of a test are packed.
struct Units {
  bool rows_first = true;  ///< parts are [rows, columns], as compressed-tensors has them.
  Index word_rows = 1, word_cols = 1, group = 4;
  bool has_order = false;
};

CodedWeight weight_of(const std::string& module, const Dims& shape, const Units& units) {
  CodedWeight w{.rows = shape[0], .cols = shape[1], .group_cols = units.group, .parts = {}};
  const auto add = [&](Role role, const char* leaf, DType dtype, Index rows, Index cols) {
    CodePart part{role, module + leaf, dtype, {{false, cols}, {true, rows}}};
    if (units.rows_first) std::swap(part.dims[0], part.dims[1]);
    w.parts.push_back(std::move(part));
  };
  add(Role::codes, "qweight", DType::i32, units.word_rows, units.word_cols);
  add(Role::zeros, "qzeros", DType::i32, 2, units.group);
  add(Role::scales, "scales", DType::f16, 1, units.group);
  if (units.has_order) w.parts.push_back({Role::order, module + "g_idx", DType::i32, {{false, 1}}});
  return w;
}

/// The codes of all linear layers of a model.
ModelCodes codes_of(const ModelSpec& model, const Units& units) {
  ModelCodes codes{"awq", "awq, 4 bits", {}, nullptr};
  for (const std::string& name :
       default_quantised(model, "vllm", *quant_format_from_name("fp8_channel")))
    codes.weights.emplace(
        name, weight_of(name.substr(0, name.size() - 6), model[*model.find(name)].shape, units));
  codes.tensors = std::make_shared<const ModelSpec>(*stored_tensors(model, codes));
  return codes;
}

SlotId slot_named(const ModelLayout& layout, const std::string& name, Rank r) {
  for (const SlotId id : layout.slots_of(r))
    if (layout.slot(id).name == name) return id;
  ADD_FAILURE() << "no slot " << name << " on rank " << r.value();
  return SlotId(0);
}

/// The tensor and its element that each element of a local tensor is.
std::map<Index, std::pair<std::string, Index>> elements_of(const ModelLayout& layout, SlotId id,
                                                           Rank r) {
  std::map<Index, std::pair<std::string, Index>> out;
  for (const Fragment& f : layout.local(id, r).fragments)
    for_each_element(layout.model(), f, [&](Index canonical, Index local) {
      out[local] = {layout.model()[f.tensor].name, canonical};
    });
  return out;
}

/// The place of a part's element for an element at [row, col] of a matrix.
Index place_in(const CodePart& part, Index row, Index col, const Dims& shape) {
  Index at = 0;
  for (int i = 0; i < shape.size(); ++i) {
    const CodeDim& dim = part.dims[static_cast<std::size_t>(i)];
    at = at * shape[i] + (dim.rows ? row : col) / dim.unit;
  }
  return at;
}

/// Compares each part of a local weight with the weight.
void expect_parts(const ModelLayout& values, const ModelLayout& layout, const ModelCodes& codes,
                  SlotId id, Rank r) {
  const Index cols = values.local_shape(id, r)[1];
  std::map<std::size_t, std::map<Index, std::pair<std::string, Index>>> expected;
  std::string first;
  for (const auto& [local, element] : elements_of(values, id, r)) {
    const auto& [tensor, canonical] = element;
    const CodedWeight& w = codes.weights.at(tensor);
    first = first.empty() ? tensor : first;
    for (std::size_t i = 0; i < w.parts.size(); ++i) {
      const CodePart& part = w.parts[i];
      const std::string leaf = part.name.substr(part.name.rfind('.') + 1);
      const std::string name = values.slot(id).name;
      const SlotId at = slot_named(layout, name.substr(0, name.size() - 6) + leaf, r);
      expected[i][place_in(part, local / cols, local % cols, layout.local_shape(at, r))] = {
          part.name, place_in(part, canonical / w.cols, canonical % w.cols, w.shape_of(part))};
    }
  }
  for (const auto& [i, elements] : expected) {
    const std::string leaf = codes.weights.at(first).parts[i].name;
    const std::string name = values.slot(id).name;
    const SlotId at =
        slot_named(layout, name.substr(0, name.size() - 6) + leaf.substr(leaf.rfind('.') + 1), r);
    EXPECT_EQ(elements_of(layout, at, r), elements) << layout.slot(at).name;
    EXPECT_EQ(volume(layout.local_shape(at, r)), static_cast<Index>(elements.size()));
  }
}

void expect_layout(const std::string& text, const Units& units) {
  SCOPED_TRACE(text);
  ModelConfig config = tiny_dense();
  config.intermediate_size = 32;
  const auto model = model_of(config);
  const auto values = layout_of(text, model, config);
  const ModelCodes codes = codes_of(*model, units);
  const auto made = codes_layout(*values, codes, "codes", true);
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_EQ(made->name(), "codes");
  EXPECT_EQ(made->model().digest(), codes.tensors->digest());
  values->ranks().for_each([&](Rank r) {
    EXPECT_TRUE(check_shard_map(*made, r));
    std::size_t coded = 0;
    for (const SlotId id : values->slots_of(r)) {
      const auto& parts = values->slot(id).sections[0].parts;
      const std::string tensor =
          parts.empty() ? "" : model->tensors()[parts[0].tensor.index()].name;
      if (!codes.weights.contains(tensor)) continue;
      // Layers are alike.
      if (tensor.starts_with("model.layers.3.")) expect_parts(*values, *made, codes, id, r);
      ++coded;
    }
    EXPECT_EQ(made->slots_of(r).size(), values->slots_of(r).size() + 2 * coded);
  });
}

TEST(Codes, are_cut_where_their_weights_are) {
  for (const char* layout : {"vllm:tp=1", "vllm:tp=2", "vllm:tp=4,replicas=2", "vllm:tp=2,pp=2"})
    for (const bool rows_first : {true, false}) {
      expect_layout(layout, {.rows_first = rows_first, .word_rows = 2});
      expect_layout(layout, {.rows_first = rows_first, .word_cols = 2, .group = 2});
    }
}

TEST(Codes, of_heads_that_ranks_outnumber_are_repeated) {
  expect_layout("vllm:tp=8", {.word_rows = 2, .group = 1});
}

TEST(Codes, without_an_order_of_columns_are_those_that_the_engine_holds) {
  const ModelConfig config = tiny_dense();
  const auto model = model_of(config);
  const auto values = layout_of("vllm:tp=2", model, config);
  ModelCodes codes = codes_of(*model, {.has_order = true});
  const auto made = codes_layout(*values, codes, "codes", true);
  ASSERT_TRUE(made) << made.error().message;
  const auto order = codes.tensors->find("model.layers.0.self_attn.q_proj.g_idx");
  ASSERT_TRUE(order);
  EXPECT_TRUE(made->omits(*order));
  const auto refused = [&](std::optional<bool> in_order) {
    for (auto& [name, weight] : codes.weights) weight.in_order = in_order;
    return codes_layout(*values, codes, "codes", true).error().message;
  };
  EXPECT_THAT(refused(false), HasSubstr("q_proj.g_idx' says that groups are not in the order"));
  EXPECT_THAT(refused(std::nullopt), HasSubstr("is known of whole files only"));
  // Elsewhere it is a part like the others, of tensors that are not fused.
  const auto whole = layout_of("hf", codes.tensors, config);
  EXPECT_TRUE(codes_layout(*whole, codes, "codes", false));
  EXPECT_THAT(codes_layout(*values, codes, "codes", false).error().message,
              HasSubstr("its tensors have one 'g_idx' each"));
}

std::string refusal(const std::string& text, const Units& units, bool shares = false) {
  const ModelConfig config = tiny_dense();
  const auto model = model_of(config);
  ModelCodes codes = codes_of(*model, units);
  for (auto& [name, weight] : codes.weights) weight.shares_group = shares;
  const auto made = codes_layout(*layout_of(text, model, config), codes, "codes", true);
  return made ? "" : made.error().message;
}

TEST(Codes, refuse_a_cut_inside_a_word_or_a_group) {
  EXPECT_EQ(refusal("vllm:tp=1", {.word_rows = 8, .group = 8}), "");
  EXPECT_THAT(refusal("vllm:tp=8", {.word_rows = 8, .group = 1}),
              HasSubstr("q_proj.weight' at row 4 is inside word 0 of "
                        "'model.layers.0.self_attn.q_proj.qweight', rows 0 to 8"));
  EXPECT_THAT(refusal("vllm:tp=8", {.group = 8}),
              HasSubstr("o_proj.weight' at column 4 is inside group 0 of "
                        "'model.layers.0.self_attn.o_proj.qzeros', columns 0 to 8"));
  EXPECT_THAT(refusal("vllm:tp=8", {.word_cols = 8, .group = 4}),
              HasSubstr("is inside word 0 of 'model.layers.0.self_attn.o_proj.qweight'"));
}

TEST(Codes, share_one_group_of_all_columns_if_the_form_does) {
  EXPECT_THAT(refusal("vllm:tp=2", {.group = 1024}), HasSubstr("inside group 0"));
  EXPECT_EQ(refusal("vllm:tp=2", {.group = 1024}, true), "");
}

TEST(Codes, refuse_what_has_no_layout_of_parts) {
  const ModelConfig config = tiny_moe();
  const auto model = model_of(config);
  const auto values = layout_of("vllm:tp=1", model, config);
  ModelCodes codes = codes_of(*model, {.group = 1});
  EXPECT_THAT(codes_layout(*values, codes, "codes", true).error().message,
              HasSubstr("how experts of this form are held depends on the engine's kernels"));
  const ModelConfig mixer = tiny_nemotron();
  const auto mixed = model_of(mixer);
  codes = codes_of(*mixed, {.group = 1});
  std::erase_if(codes.weights, [](const auto& w) { return !w.first.ends_with(".in_proj.weight"); });
  codes.tensors = std::make_shared<const ModelSpec>(*stored_tensors(*mixed, codes));
  EXPECT_THAT(
      codes_layout(*layout_of("vllm:tp=1", mixed, mixer), codes, "codes", true).error().message,
      HasSubstr("it has parts of"));
  const ModelConfig dense = tiny_dense();
  const auto other = model_of(dense);
  codes = codes_of(*other, {.group = 1});
  codes.weights.erase("model.layers.1.self_attn.k_proj.weight");
  codes.tensors = std::make_shared<const ModelSpec>(*stored_tensors(*other, codes));
  EXPECT_THAT(
      codes_layout(*layout_of("vllm:tp=1", other, dense), codes, "codes", true).error().message,
      HasSubstr("'model.layers.1.self_attn.k_proj.weight' is stored as plain values"));
}

TEST(Codes, of_known_forms_have_names) {
  EXPECT_TRUE(is_code_form("awq"));
  EXPECT_TRUE(is_code_form("gptq"));
  EXPECT_FALSE(is_code_form("bitsandbytes"));
  EXPECT_THAT(known_code_forms(), HasSubstr("awq, gptq"));
}

}  // namespace
}  // namespace reshard
