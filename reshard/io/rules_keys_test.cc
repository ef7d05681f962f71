// SPDX-License-Identifier: Apache-2.0
// Protects: keys of words, texts, numbers by name, requirements, blocks and bases of rules files
// mean what docs/rules.md says; and where the keys of experts place them.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "reshard/io/files/temp_dir_testutil.h"
#include "reshard/io/rules_file.h"
#include "reshard/model/families.h"
#include "reshard/model/held_testutil.h"

namespace reshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Tensor {
  const char* name;
  Dims shape;
};

std::shared_ptr<const ModelSpec> model_with(std::initializer_list<Tensor> tensors) {
  ModelSpec model;
  for (const Tensor& t : tensors) EXPECT_TRUE(model.add(t.name, t.shape, DType::bf16));
  return std::make_shared<const ModelSpec>(std::move(model));
}

Result<ModelLayout> layout_by(const std::string& rules, std::shared_ptr<const ModelSpec> model,
                              const std::string& keys = "", const ExpertTables* tables = nullptr) {
  const auto set = parse_rules(rules);
  if (!set) return tl::unexpected(set.error());
  FamilyInput input{std::move(model)};
  input.expert_map = tables;
  return rules_layout(*parse_layout("rules:x.json" + keys), input, *set);
}

std::vector<std::string> names(const Result<ModelLayout>& layout) {
  std::vector<std::string> found;
  if (!layout) return {layout.error().message};
  for (Index i = 0; i < layout->num_slots(); ++i)
    found.push_back(layout->slot(SlotId(static_cast<SlotId::rep>(i))).name);
  return found;
}

constexpr const char* kWords = R"({
  "axes": [{"name": "tp", "size": 1}],
  "keys": [{"name": "front", "words": ["short", "long"], "texts": ["", "model."]},
           {"name": "form", "words": ["a", "b"]}],
  "let": {"half": "tp / 2 * 2 == tp", "twice": "tp * 2"},
  "texts": {"end": ".x"},
  "require": [{"that": "tp < 5", "says": "tp={tp} is more than {twice / 2 - tp + 4}"},
              {"that": "form.a || said.front", "says": "form=b needs front"}],
  "rules": [{"match": "w", "name": "{front}w{end}", "when": "form.a"},
            {"match": "w", "name": "{front}v", "when": "form == 1"}]})";

TEST(RulesKeys, choose_rules_and_names_by_words) {
  const auto model = model_with({{"w", {4}}});
  EXPECT_THAT(names(layout_by(kWords, model, ",tp=2")), ElementsAre("w.x"));
  EXPECT_THAT(names(layout_by(kWords, model, ",tp=2,front=long")), ElementsAre("model.w.x"));
  EXPECT_THAT(names(layout_by(kWords, model, ",tp=2,front=short,form=b")), ElementsAre("v"));
  EXPECT_EQ(layout_by(kWords, model, ",tp=2,front=lon").error().message,
            "rules: front=lon must be one of short, long (did you mean 'long'?)");
}

TEST(RulesKeys, may_be_silent_on_what_a_message_names) {
  constexpr const char* kRules = R"({"axes": [{"name": "tp", "size": 1}],
    "require": [{"that": "tp > 1", "says": "tp={tp} for {dtype}"}], "rules": [{"match": "w"}]})";
  const auto model = model_with({{"w", {4}}});
  EXPECT_EQ(layout_by(kRules, model).error().message, "rules: tp=1 for the default");
  EXPECT_EQ(layout_by(kRules, model, ",dtype=float32").error().message, "rules: tp=1 for float32");
}

TEST(RulesKeys, that_do_not_fit_are_all_said) {
  const auto model = model_with({{"w", {4}}});
  EXPECT_EQ(layout_by(kWords, model, ",tp=6,form=b").error().message,
            "rules: tp=6 is more than 4; form=b needs front");
  EXPECT_EQ(layout_by(kWords, model, ",tp=6,form=b,lanes=2").error().message.substr(0, 27),
            "rules: unknown key 'lanes';");
  EXPECT_THAT(layout_by(kWords, model, ",tp=1").error().message, HasSubstr("'tp / 2 * 2 == tp'"))
      << "numbers are divided exactly";
}

// Layers 0 and 1 of a decoder, and layer 2 of a draft model, whose head is the decoder's.
constexpr const char* kBlocks = R"({
  "axes": [{"name": "pp", "size": 1}],
  "keys": [{"name": "draft", "words": ["0", "1"]}], "let": {"layers": 2},
  "blocks": [
    {"block": "layer", "match": "layers.#.", "name": "model.$1.", "below": "layers",
     "where": [{"axis": "pp", "number": 1, "of": "layers"}]},
    {"block": "layer", "match": "layers.#.", "name": "draft.", "from": "layers", "when": "draft",
     "where": [{"axis": "pp", "at": -1}]}],
  "rules": [
    {"in": "layer", "match": "w"},
    {"in": "layer", "match": "part.#.v", "name": "v$2"},
    {"match": "layers.#.norm", "from": "layers", "when": "draft", "of": "head", "shared": true,
     "name": "draft$1.head"},
    {"in": "layer", "match": "norm"},
    {"match": "layers.#.*", "from": "layers", "omit": true},
    {"match": "head"}]})";

TEST(RulesKeys, blocks_are_the_beginning_of_names) {
  const auto model = model_with({{"layers.0.w", {4}},
                                 {"layers.1.w", {4}},
                                 {"layers.1.part.7.v", {4}},
                                 {"layers.2.w", {4}},
                                 {"layers.2.norm", {2}},
                                 {"head", {8}}});
  const auto plain = layout_by(kBlocks, model, ",pp=2");
  EXPECT_THAT(names(plain), ElementsAre("model.0.w", "model.1.w", "model.1.v7", "head"));
  EXPECT_TRUE(plain->omits(*model->find("layers.2.w")));
  EXPECT_FALSE(slot_named(*plain, "model.1.w", 0));
  const auto draft = layout_by(kBlocks, model, ",pp=2,draft=1");
  EXPECT_THAT(names(draft), ElementsAre("model.0.w", "model.1.w", "model.1.v7", "draft.w",
                                        "draft2.head", "draft.norm", "head"));
  EXPECT_EQ(draft->local_shape(*slot_named(*draft, "draft2.head", 0), Rank(0)), (Dims{8}));
  EXPECT_TRUE(slot_named(*draft, "draft.w", 1));
  EXPECT_FALSE(slot_named(*draft, "draft.w", 0));
}

// Experts of [2, 3] in a and b, and two more beside each other in `more` [4, 3].
constexpr const char* kExperts = R"({
  "axes": [{"name": "ep", "size": 1}],
  "keys": [{"name": "redundant", "default": 0}, {"name": "expert_map", "file": true},
           {"name": "placement", "words": ["linear", "round_robin"]},
           {"name": "behind", "words": ["0", "1"]}, {"name": "swapped", "words": ["0", "1"]}],
  "rules": [
    {"match": "#.a.#", "each": 2, "name": "$1.w", "stack": 1, "reverse": "swapped",
     "swap": {"dims": [1, 2], "when": "swapped"}, "cuts": [{"dim": 0, "axes": ["ep"]}],
     "with": [{"match": "#.more", "behind": true, "when": "behind"},
              {"match": "#.b.#", "each": 2, "cuts": [{"dim": 0, "axes": ["ep"]}]},
              {"match": "#.more", "shared": true, "behind": true, "when": "behind"}]},
    {"match": "#.more"},
    {"match": "stacked", "experts": true, "cuts": [{"dim": 0, "axes": ["ep"]}], "name": "s"}]})";

std::shared_ptr<const ModelSpec> experts() {
  return model_with({{"0.a.0", {2, 3}},
                     {"0.a.1", {2, 3}},
                     {"0.a.2", {2, 3}},
                     {"0.b.0", {2, 3}},
                     {"0.b.1", {2, 3}},
                     {"0.b.2", {2, 3}},
                     {"0.more", {4, 3}}});
}

/// The first section's experts on a rank: tensors, and their first row.
std::vector<std::string> held(const Result<ModelLayout>& l, int rank, const std::string& front) {
  if (!l) return {l.error().message};
  std::vector<std::string> found;
  for (const Fragment& f : l->local(*slot_named(*l, "0.w", rank), Rank(rank)).fragments)
    if (const std::string& name = l->model()[f.tensor].name; name.starts_with(front))
      found.push_back(fmt::format("{}@{}", name.substr(2), f.box[0].begin()));
  return found;
}

TEST(RulesKeys, place_experts) {
  const auto model = experts();
  EXPECT_THAT(held(layout_by(kExperts, model, ",ep=2"), 0, "0.a"), ElementsAre("a.0@0", "a.1@0"));
  EXPECT_THAT(held(layout_by(kExperts, model, ",ep=2,placement=round_robin"), 0, "0.a"),
              ElementsAre("a.0@0", "a.2@0"));
  EXPECT_THAT(held(layout_by(kExperts, model, ",ep=2,redundant=1"), 1, "0.a"),
              ElementsAre("a.2@0", "a.0@0"));
  const ExpertTables table{{2, 1, 0, 0}};
  EXPECT_THAT(held(layout_by(kExperts, model, ",ep=2,expert_map=x", &table), 0, "0.b"),
              ElementsAre("b.2@0", "b.1@0"));
  EXPECT_EQ(layout_by(kExperts, model, ",ep=2,redundant=2").error().message,
            "rules: ep=2 does not divide num_experts+redundant=5; all ranks must hold equally many "
            "experts");
}

TEST(RulesKeys, put_experts_behind_a_ranks_own) {
  const auto l = layout_by(kExperts, experts(), ",ep=3,behind=1");
  EXPECT_THAT(held(l, 2, "0."),
              ElementsAre("a.2@0", "more@0", "more@2", "b.2@0", "more@0", "more@2"));
  EXPECT_FALSE(slot_named(*l, "0.more", 0));
  EXPECT_THAT(
      layout_by(kExperts, model_with({{"0.a.0", {2, 3}}, {"0.b.0", {2, 3}}, {"0.more", {3, 3}}}),
                ",behind=1")
          .error()
          .message,
      HasSubstr("'0.more' is [3, 3], no whole number of experts as '0.a.0', which is [2, 3]"));
}

TEST(RulesKeys, swap_dimensions_and_reverse_parts) {
  const auto plain = layout_by(kExperts, experts()),
             swapped = layout_by(kExperts, experts(), ",swapped=1");
  EXPECT_EQ(shape_on(*plain, "0.w", 0), "[3, 4, 3]");
  EXPECT_EQ(shape_on(*swapped, "0.w", 0), "[3, 3, 4]");
  EXPECT_THAT(boxes_on(*swapped, "0.w", 0),
              ::testing::StartsWith("0[0,2)x[0,3)@0:1,4 0[0,2)x[0,3)@2:1,4"));
  EXPECT_EQ(swapped->model()[swapped->slot(SlotId(0)).sections[0].parts[0].tensor].name, "0.b.0");
}

TEST(RulesKeys, place_stacked_experts) {
  const auto l = layout_by(kExperts, model_with({{"stacked", {3, 2}}}), ",ep=2,redundant=1");
  EXPECT_EQ(boxes_on(*l, "s", 1), "stacked[2,3)x[0,2)@0:2,1 stacked[0,1)x[0,2)@2:2,1");
}

TEST(RulesKeys, of_a_base_come_after_those_of_the_card) {
  const testing::TempDir folder;
  std::filesystem::create_directories(folder / "bases");
  folder.write("bases/b.json", R"({"axes": [{"name": "tp", "size": 1}], "let": {"n": 1, "m": "n"},
      "texts": {"t": "base"},
      "rules": [{"match": "w", "name": "{t}", "when": "m == 2"}, {"match": "#"}]})");
  const auto card = read_card(folder.write("card.json", R"({"base": "b", "let": {"n": 2},
      "rules": [{"match": "v", "name": "own"}]})"));
  ASSERT_TRUE(card) << card.error().message;
  const auto layout =
      rules_layout(*parse_layout("rules:x.json"), {model_with({{"v", {1}}, {"w", {1}}})}, *card);
  EXPECT_THAT(names(layout), ElementsAre("own", "base"));
  EXPECT_EQ(layout->slot(SlotId(1)).rule, 2);
  EXPECT_THAT(read_card(folder.write("up.json", R"({"base": "../b"})")).error().message,
              HasSubstr("up.json"));
  EXPECT_THAT(read_rules(folder / "card.json").error().message,
              HasSubstr("base is only for cards that ship with the program"));
}

TEST(RulesKeys, that_say_nothing_that_is_known_are_refused) {
  for (const auto& [text, says] : std::initializer_list<std::pair<const char*, const char*>>{
           {R"({"keys": [{"name": "k", "words": ["a", "a"]}], "rules": [{"match": "*"}]})",
            "key 1: words must differ, and texts be as many"},
           {R"({"keys": [{"name": "k", "file": true}], "rules": [{"match": "*"}]})",
            "key 1: only expert_map names a file"},
           {R"({"let": {"a": 1.5}, "rules": [{"match": "*"}]})", "let: a must be a number or an"},
           {R"({"let": [], "rules": [{"match": "*"}]})", "let must be an object"},
           {R"({"texts": {"a": 1}, "rules": [{"match": "*"}]})", "texts: a must be a text"},
           {R"({"rules": [{"match": "*", "in": "x"}]})", "rule 1: there is no block \"x\""},
           {R"({"rules": [{"match": "a", "from": 1}]})", "from and below need a #"},
           {R"({"rules": [{"match": "a", "swap": {"dims": [1]}}]})", "dims must list two"},
           {R"({"rules": [{"match": "a", "of": "b$1"}]})", "name uses $1"},
           {R"({"rules": [{"match": "a", "name": "x", "with": [{"match": "b", "behind": true}]}]})",
            "\"b\" is behind \"a\", which must have each"}}) {
    const auto set = parse_rules(text);
    ASSERT_FALSE(set) << text;
    EXPECT_THAT(set.error().message, HasSubstr(says));
  }
  EXPECT_THAT(layout_by(R"({"rules": [{"match": "w", "name": "{t}"}]})", model_with({{"w", {1}}}))
                  .error()
                  .message,
              HasSubstr("the file has no text 't'"));
}

}  // namespace
}  // namespace reshard
