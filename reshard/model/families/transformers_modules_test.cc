// SPDX-License-Identifier: Apache-2.0
// Protects: experts are in module parameters as in transformers 4 and 5, however ranks cut them.
// tests/python/test_fsdp_modules.py compares with the modules themselves.
#include "reshard/model/families/transformers_modules.h"
#include "reshard/model/families/dtensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reshard/model/canonical.h"
#include "reshard/model/configs_testutil.h"
#include "reshard/model/families.h"
#include "reshard/model/local_text_testutil.h"

namespace reshard::families {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

ModelLayout fsdp(const std::string& text, const ModelConfig& c) {
  auto l = fsdp_layout(*parse_layout(text), {model_of(c), &c});
  EXPECT_TRUE(l.has_value()) << l.error().message;
  return *std::move(l);
}

DTensorMesh mesh(std::vector<Index> shape, std::initializer_list<int> ranks) {
  DTensorMesh m{"m", std::move(shape), {}};
  for (int r : ranks) m.ranks.emplace_back(r);
  return m;
}

/// The layout of a file of these rules over `m`.
ModelLayout placed(const ModelConfig& c, const DTensorMesh& m,
                   const std::vector<std::pair<std::string, std::vector<Placement>>>& rules,
                   const std::string& keys = "") {
  DTensorSet set{{m}, {}};
  for (const auto& [match, placements] : rules) set.rules.push_back({match, "", 0, placements});
  auto l = dtensor_layout(*parse_layout("dtensor:x.json" + keys), {model_of(c), &c}, set);
  EXPECT_TRUE(l.has_value()) << l.error().message;
  return *std::move(l);
}

const std::string kUp = "model.layers.1.mlp.experts.gate_up_proj",
                  kDown = "model.layers.1.mlp.experts.down_proj";

TEST(TransformersModules, experts_are_stacked_and_cut_by_experts) {
  // 10 experts of 8 x 16 over 4: 3, 3, 3, 1.
  const ModelLayout l = fsdp("fsdp:shard=4", tiny_moe());
  EXPECT_THAT(local_text(l, kUp, 3),
              "gate_proj[0,8)x[0,16)@0 up_proj[0,8)x[0,16)@128 of [1, 16, 16]");
  EXPECT_THAT(local_text(l, kDown, 1), HasSubstr("of [3, 16, 8]"));
  EXPECT_THAT(local_names(l, 0), Not(HasSubstr("experts.0.")));
  EXPECT_THAT(local_names(l, 0), HasSubstr("model.layers.1.mlp.gate.weight\n"));
  expect_whole(l);
}

TEST(TransformersModules, of_version_4_are_the_checkpoints) {
  const ModelLayout l = fsdp("fsdp:shard=4,transformers=4", tiny_moe());
  EXPECT_EQ(local_text(l, "model.layers.1.mlp.experts.9.gate_proj.weight", 3),
            "gate_proj[6,8)x[0,16)@0 of [2, 16]");
  EXPECT_EQ(local_text(l, kUp, 3), "absent");
  const auto bad = fsdp_layout(*parse_layout("fsdp:transformers=3"), {model_of(tiny_moe())});
  EXPECT_THAT(bad.error().message, HasSubstr("transformers=3 must be one of 5, 4"));
}

TEST(TransformersModules, have_names_of_their_own_in_version_5) {
  const ModelLayout hybrid = fsdp("fsdp:shard=2", tiny_nemotron());
  EXPECT_THAT(local_text(hybrid, "model.layers.1.mixer.experts.up_proj", 0),
              StartsWith("up_proj[0,8)x[0,12)@0 "));
  EXPECT_THAT(local_names(hybrid, 0), HasSubstr("model.embeddings.weight\n"));
  EXPECT_THAT(local_names(fsdp("fsdp:transformers=4", tiny_nemotron()), 0),
              HasSubstr("backbone.embeddings.weight\n"));
  ModelConfig mixtral = tiny_moe();
  mixtral.model_type = "mixtral";
  mixtral.qk_norm = false;
  const ModelLayout renamed = fsdp("fsdp:shard=2", mixtral);
  EXPECT_THAT(local_text(renamed, kUp, 0), StartsWith("w1[0,8)x[0,16)@0 w3[0,8)x[0,16)@128 "));
  EXPECT_THAT(local_names(renamed, 0), HasSubstr("model.layers.1.mlp.gate.weight\n"));
  EXPECT_THAT(local_names(renamed, 0), Not(HasSubstr("block_sparse_moe")));
}

TEST(TransformersModules, experts_that_are_not_alike_stay_alone) {
  auto model = std::make_shared<ModelSpec>();
  const auto add = [&](const std::string& name, Dims shape, DType dtype = DType::bf16) {
    ASSERT_TRUE(model->add(name, shape, dtype));
  };
  for (const char* block : {"missing", "shape", "dtype", "gates", "gap"})
    for (const char* e : {"0", "1"})
      for (const char* p : {"gate_proj", "up_proj", "down_proj"}) {
        const std::string which = block;
        const bool second = e[0] == '1', odd = second && p[0] == 'd';
        if (which == "missing" && odd) continue;
        add(which + ".experts." + (which == "gap" && second ? "2" : e) + "." + p + ".weight",
            which == "shape" && odd           ? Dims{2, 3}
            : which == "gates" && p[0] == 'g' ? Dims{4, 2}
                                              : Dims{2, 2},
            which == "dtype" && odd ? DType::f32 : DType::bf16);
      }
  const auto held = transformers_modules(*model, nullptr, 5);
  EXPECT_EQ(static_cast<Index>(held.size()), model->size());
  for (const ModuleTensor& t : held) EXPECT_EQ(t.name, (*model)[t.tensor].name);
}

TEST(TransformersModules, placements_cut_the_stack_as_it_is) {
  const Placement rows{Placement::Kind::shard, 1, 1}, whole{};
  const Placement strided{Placement::Kind::strided_shard, -1, 2};
  // 16 rows of gates and ups over 2: one rank has the gates, the other the ups.
  const ModelLayout l =
      placed(tiny_moe(), mesh({2}, {0, 1}), {{"*gate_up_proj", {rows}}, {"*", {whole}}});
  EXPECT_THAT(local_text(l, kUp, 1), StartsWith("up_proj[0,8)x[0,16)@0 up_proj[0,8)x[0,16)@128 "));
  expect_whole(l);
  // Ranks that do not follow each other, and a strided shard: no closed form.
  const ModelLayout other =
      placed(tiny_moe(), mesh({3}, {4, 0, 2}), {{"*gate_up_proj", {rows}}, {"*", {whole}}});
  EXPECT_THAT(local_text(other, kUp, 0), StartsWith("gate_proj[6,8)x[0,16)@0 up_proj[0,4)x"));
  expect_whole(other);
  const ModelLayout chunks =
      placed(tiny_moe(), mesh({2}, {0, 1}), {{"*down_proj", {strided}}, {"*", {whole}}});
  EXPECT_THAT(local_text(chunks, kDown, 1),
              StartsWith("down_proj[0,16)x[2,4)@0 down_proj[0,16)x[6,8)@2 "));
  expect_whole(chunks);
}

TEST(TransformersModules, the_form_is_the_one_that_a_rule_names_first) {
  const Placement whole{};
  const auto stacked = [&](const std::vector<std::string>& matches, const std::string& keys = "") {
    std::vector<std::pair<std::string, std::vector<Placement>>> rules;
    for (const std::string& match : matches) rules.push_back({match, {whole}});
    return local_text(placed(tiny_moe(), mesh({1}, {0}), rules, keys), kUp, 0) != "absent";
  };
  EXPECT_TRUE(stacked({"*"}));
  EXPECT_TRUE(stacked({"*.experts.gate_up_proj", "*.experts.#.*", "*"}));
  EXPECT_FALSE(stacked({"*.experts.#.*", "*.experts.gate_up_proj", "*"}));
  EXPECT_FALSE(stacked({"*.experts.#.*", "*"}));
  EXPECT_FALSE(stacked({"*.weight", "*.e_score_correction_bias"}));
  EXPECT_TRUE(stacked({"*.experts.#.*", "*"}, ",transformers=5"));
  EXPECT_FALSE(stacked({"*"}, ",transformers=4"));
}

}  // namespace
}  // namespace reshard::families
