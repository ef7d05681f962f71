// SPDX-License-Identifier: Apache-2.0
// Protects: layouts built from reports equal those of the families, and all documented errors are
// errors.
#include "reshard/model/reported/gathered.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "reshard/model/configs_testutil.h"
#include "reshard/model/elements_testutil.h"
#include "reshard/model/reported/metadata_testutil.h"

namespace reshard {
namespace {

using ::testing::HasSubstr;

/// The tensor and canonical index of each element of a local tensor, or {-1, 0} for padding.
using Elements = std::vector<std::pair<int, Index>>;

Elements elements(const ModelLayout& layout, SlotId id, Rank r) {
  const LocalTensor t = layout.local(id, r);
  Elements out(static_cast<std::size_t>(volume(t.shape)), {-1, 0});
  for (const Fragment& f : t.fragments) {
    for_each_element(layout.model(), f, [&](Index canonical, Index local) {
      out[static_cast<std::size_t>(local)] = {f.tensor.value(), canonical};
    });
  }
  return out;
}

std::map<std::string, SlotId> slots_by_name(const ModelLayout& layout, Rank r) {
  std::map<std::string, SlotId> out;
  for (SlotId id : layout.slots_of(r)) out.emplace(layout.slot(id).name, id);
  return out;
}

/// Checks that a gathered layout holds the family's elements, one for one, on every rank; `meaning`
/// maps a gathered element to the family's and grows as it learns.
void expect_same(const ModelLayout& gathered, const ModelLayout& family,
                 std::map<std::pair<int, Index>, std::pair<int, Index>>& meaning) {
  ASSERT_EQ(gathered.ranks(), family.ranks());
  family.ranks().for_each([&](Rank r) {
    const auto mine = slots_by_name(gathered, r), theirs = slots_by_name(family, r);
    ASSERT_EQ(mine.size(), theirs.size()) << r.value();
    for (const auto& [name, id] : theirs) {
      ASSERT_TRUE(mine.contains(name)) << name;
      const SlotId own = mine.at(name);
      ASSERT_EQ(gathered.stored_shape(own, r), family.stored_shape(id, r)) << name;
      const Elements a = elements(gathered, own, r), b = elements(family, id, r);
      for (std::size_t i = 0; i < a.size(); ++i) {
        ASSERT_GE(a[i].first, 0) << name;
        const auto [it, fresh] = meaning.emplace(a[i], b[i]);
        ASSERT_EQ(it->second, b[i]) << name << " element " << i << " of rank " << r.value();
      }
    }
    EXPECT_TRUE(check_shard_map(gathered, r).has_value());
  });
}

struct Case {
  const char *from, *to;
  bool moe;
};

class Refit : public ::testing::TestWithParam<Case> {};

TEST_P(Refit, gathered_layouts_are_those_of_the_family) {
  const auto [from, to, moe] = GetParam();
  const ModelConfig c = moe ? tiny_moe() : tiny_dense();
  const auto model = model_of(c);
  const auto source = layout_of(from, model, c), target = layout_of(to, model, c);
  const auto pair = gathered_layouts(reported_by(*source, c), reported_by(*target, c));
  ASSERT_TRUE(pair.has_value()) << pair.error().message;
  std::map<std::pair<int, Index>, std::pair<int, Index>> meaning;
  expect_same(*pair->source, *source, meaning);
  expect_same(*pair->target, *target, meaning);
}

// Padding is one element to the family and one of the parameter's own to ranks: sides that pad
// alike, or not at all.
constexpr Case kCases[] = {
    {"megatron:tp=1,vocab_multiple=4", "megatron:tp=2,vocab_multiple=2", false},
    {"megatron:tp=4,vocab_multiple=1", "megatron:tp=1,vocab_multiple=4", false},
    {"megatron:tp=2,vocab_multiple=2", "megatron:tp=4,vocab_multiple=1,offset=4", false},
    {"megatron:pp=1,vocab_multiple=4", "megatron:pp=2,vocab_multiple=4", false},
    {"megatron:pp=4,vocab_multiple=4", "megatron:pp=2,vocab_multiple=4,offset=1", false},
    {"megatron:tp=2,pp=1,vocab_multiple=2", "megatron:tp=1,pp=2,vocab_multiple=4", false},
    {"megatron:tp=2,dp=2,cp=2,vocab_multiple=2", "megatron:tp=4,dp=2,vocab_multiple=1", false},
    {"megatron:ep=1,vocab_multiple=4", "megatron:ep=2,vocab_multiple=4", true},
    {"megatron:ep=5,vocab_multiple=4", "megatron:ep=2,vocab_multiple=4,offset=8", true},
    {"megatron:tp=2,ep=2,etp=1,vocab_multiple=2", "megatron:tp=1,ep=1,vocab_multiple=4", true},
    {"megatron:tp=2,ep=1,vocab_multiple=2", "megatron:tp=1,ep=5,pp=2,dp=5,vocab_multiple=4", true},
    {"megatron:tp=2,ep=2,pp=2,cp=2,vocab_multiple=2", "megatron:tp=4,ep=2,etp=2,vocab_multiple=1",
     true},
};

INSTANTIATE_TEST_SUITE_P(Megatron, Refit, ::testing::ValuesIn(kCases));

GroupRanks group(std::initializer_list<int> ranks) {
  std::vector<Rank> out;
  for (int r : ranks) out.emplace_back(r);
  return std::make_shared<const std::vector<Rank>>(std::move(out));
}

/// A bf16 parameter that is cut by rows over a group.
ParameterMetadata cut(const std::string& name, Dims shape, GroupRanks over) {
  ParameterMetadata p;
  p.name = name;
  p.shape = shape;
  p.is_tp = true;
  p.tensor_parallel_group_ranks = std::move(over);
  return p;
}

GatheredMetadata gathered(std::initializer_list<std::pair<int, ParameterMetadata>> reports) {
  std::map<int, RankMetadata> ranks;
  for (auto [r, p] : reports) {
    p.owner_rank = Rank(r);
    ranks[r].rank = Rank(r);
    ranks[r].parameters.push_back(p);
  }
  MetadataGatherer g;
  for (const auto& [r, m] : ranks) {
    const auto added = g.add(m);
    EXPECT_TRUE(added.has_value()) << added.error().message;
  }
  return std::move(g).finish();
}

/// "[4,8)+0 [12,16)+4": rows of the canonical tensor, and where they begin in the local one.
std::string rows(const ModelLayout& layout, int rank) {
  std::string text;
  for (SlotId id : layout.slots_of(Rank(rank))) {
    const LocalTensor t = layout.local(id, Rank(rank));
    for (const Fragment& f : t.fragments)
      text += (text.empty() ? "" : " ") + to_string(f.box[0]) + "+" +
              std::to_string(f.where.offset / row_major(t.shape)[0]);
  }
  return text;
}

TEST(Gathered, partition_stride_cuts_each_half_by_itself) {
  auto a = cut("fc1", {8, 2}, group({0, 1}));
  a.partition_stride = 2;
  const auto whole = gathered({{2, cut("fc1", {16, 2}, group({2}))}});
  const auto pair = gathered_layouts(whole, gathered({{0, a}, {1, a}}));
  ASSERT_TRUE(pair.has_value()) << pair.error().message;
  EXPECT_EQ(rows(*pair->target, 0), "[0,4)+0 [8,12)+4");
  EXPECT_EQ(rows(*pair->target, 1), "[4,8)+0 [12,16)+4");
  EXPECT_EQ(rows(*pair->source, 2), "[0,16)+0");
}

TEST(Gathered, partition_sizes_cut_each_packed_part_by_itself) {
  auto half = cut("in_proj", {7, 2}, group({0, 1}));
  half.partition_sizes = std::vector<Index>{4, 2, 1};
  auto whole = cut("in_proj", {14, 2}, group({4}));
  whole.partition_sizes = std::vector<Index>{8, 4, 2};
  const auto pair = gathered_layouts(gathered({{4, whole}}), gathered({{0, half}, {1, half}}));
  ASSERT_TRUE(pair.has_value()) << pair.error().message;
  EXPECT_EQ(rows(*pair->target, 1), "[4,8)+0 [10,12)+4 [13,14)+6");
  EXPECT_EQ(rows(*pair->source, 4), "[0,14)+0");
  whole.partition_sizes = std::vector<Index>{6, 6, 2};
  EXPECT_THAT(
      gathered_layouts(gathered({{4, whole}}), gathered({{0, half}, {1, half}})).error().message,
      HasSubstr("'in_proj': the totals of partition_sizes"));
}

TEST(Gathered, members_may_hold_different_amounts) {
  const auto over = group({1, 0, 2});
  const auto source = gathered(
      {{0, cut("w", {3, 2}, over)}, {1, cut("w", {4, 2}, over)}, {2, cut("w", {0, 2}, over)}});
  const auto two = group({5, 6});
  const auto target = gathered({{5, cut("w", {2, 2}, two)}, {6, cut("w", {5, 2}, two)}});
  const auto pair = gathered_layouts(source, target);
  ASSERT_TRUE(pair.has_value()) << pair.error().message;
  EXPECT_EQ(rows(*pair->source, 1), "[0,4)+0");  // first in the group
  EXPECT_EQ(rows(*pair->source, 0), "[4,7)+0");
  EXPECT_EQ(rows(*pair->source, 2), "");
  EXPECT_EQ(rows(*pair->target, 6), "[2,7)+0");
}

TEST(Gathered, groups_of_one_size_may_share_differently) {
  const auto a = group({0, 1}), b = group({2, 3});
  const auto source = gathered({{0, cut("w", {3, 1}, a)},
                                {1, cut("w", {5, 1}, a)},
                                {2, cut("w", {6, 1}, b)},
                                {3, cut("w", {2, 1}, b)}});
  const auto pair = gathered_layouts(source, gathered({{9, cut("w", {8, 1}, group({9}))}}));
  ASSERT_TRUE(pair.has_value()) << pair.error().message;
  EXPECT_EQ(rows(*pair->source, 1), "[3,8)+0");
  EXPECT_EQ(rows(*pair->source, 3), "[6,8)+0");
}

TEST(Gathered, sides_may_store_different_dtypes) {
  ParameterMetadata trained;
  trained.name = "router.expert_bias";
  trained.shape = {4};
  trained.dtype = DType::f32;
  trained.element_size = 4;
  ParameterMetadata fresh = trained;
  fresh.dtype = DType::bf16;
  fresh.element_size = 2;
  const auto pair = gathered_layouts(gathered({{0, trained}}), gathered({{1, fresh}}));
  ASSERT_TRUE(pair.has_value()) << pair.error().message;
  EXPECT_EQ((*pair->model)[TensorId(0)].dtype, DType::f32);
  EXPECT_EQ(pair->target->slot(SlotId(0)).dtype, DType::bf16);
}

TEST(Gathered, equal_reports_share_a_slot) {
  ParameterMetadata norm;
  norm.name = "norm";
  norm.shape = {4};
  const auto m = gathered({{0, norm}, {1, norm}, {7, norm}});
  EXPECT_EQ(m.templates.size(), 1u);
  const auto pair = gathered_layouts(m, m);
  ASSERT_TRUE(pair.has_value()) << pair.error().message;
  EXPECT_EQ(pair->source->num_slots(), 1);
  EXPECT_EQ(to_string(pair->source->ranks()), "{0-1, 7}");
}

TEST(Gathered, a_tied_output_layer_comes_from_the_embedding) {
  const auto one = group({0});
  const auto source = gathered({{0, cut("embedding.word_embeddings.weight", {8, 2}, one)}});
  const auto last = gathered({{0, cut("embedding.word_embeddings.weight", {8, 2}, one)},
                              {1, cut("output_layer.weight", {8, 2}, group({1}))}});
  const auto pair = gathered_layouts(source, last);
  ASSERT_TRUE(pair.has_value()) << pair.error().message;
  EXPECT_EQ(pair->model->size(), 1);
  EXPECT_EQ(rows(*pair->target, 1), "[0,8)+0");
  const auto back = gathered_layouts(last, source);
  ASSERT_TRUE(back.has_value()) << back.error().message;
  EXPECT_EQ(back->ignore, std::set<std::string>{"output_layer.weight"});
}

ParameterMetadata fused_expert(Dims shape, GroupRanks over) {
  ParameterMetadata p;
  p.name = "mlp.experts.weights";
  p.shape = shape;
  p.is_ep = true;
  p.num_experts = 4;
  p.expert_parallel_group_ranks = std::move(over);
  return p;
}

TEST(Gathered, stacked_experts_are_one_tensor) {
  const auto two = group({0, 1});
  const auto pair =
      gathered_layouts(gathered({{0, fused_expert({2, 3}, two)}, {1, fused_expert({2, 3}, two)}}),
                       gathered({{5, fused_expert({4, 3}, group({5}))}}));
  ASSERT_TRUE(pair.has_value()) << pair.error().message;
  EXPECT_EQ(rows(*pair->source, 1), "[2,4)+0");
  EXPECT_EQ(rows(*pair->target, 5), "[0,4)+0");
}

TEST(Gathered, other_fused_experts_match_by_position) {
  const auto two = group({0, 1}), other = group({3, 2});
  const auto source = gathered({{0, fused_expert({3, 6}, two)}, {1, fused_expert({3, 6}, two)}});
  const auto pair = gathered_layouts(
      source, gathered({{2, fused_expert({3, 6}, other)}, {3, fused_expert({3, 6}, other)}}));
  ASSERT_TRUE(pair.has_value()) << pair.error().message;
  const auto tensor = [](const ModelLayout& l, int r) {
    return l.local(l.slots_of(Rank(r))[0], Rank(r)).fragments[0].tensor;
  };
  EXPECT_EQ(tensor(*pair->source, 0), tensor(*pair->target, 3));
  EXPECT_EQ(tensor(*pair->source, 1), tensor(*pair->target, 2));
  const auto missing = gathered_layouts(
      gathered({{0, fused_expert({3, 6}, two)}}),
      gathered({{2, fused_expert({3, 6}, other)}, {3, fused_expert({3, 6}, other)}}));
  EXPECT_THAT(
      missing.error().message,
      HasSubstr("no rank at the same position of an expert parallel group of 2; it has 0 of "
                "2"));
}

TEST(Gathered, errors_name_the_parameter) {
  const auto one = group({0}), two = group({0, 1});
  const auto said = [](const GatheredMetadata& from, const GatheredMetadata& to) {
    const auto pair = gathered_layouts(from, to);
    return pair ? "" : pair.error().message;
  };
  EXPECT_THAT(said(gathered({{0, cut("a", {4}, one)}}), gathered({{3, cut("b", {4}, group({3}))}})),
              HasSubstr("'b' on rank 3 of the target has no source"));
  EXPECT_THAT(said(gathered({{0, cut("a", {4}, two)}, {1, cut("a", {4}, two)}}),
                   gathered({{0, cut("a", {4}, one)}})),
              HasSubstr("'a': its total shape is [8] on the source but [4] on the target"));
  EXPECT_THAT(said(gathered({{0, cut("a", {4}, two)}}), gathered({{0, cut("a", {8}, one)}})),
              HasSubstr("member 1 of a tensor parallel group of 2 does not report it"));
  auto f32 = cut("a", {4}, two);
  f32.dtype = DType::f32;
  f32.element_size = 4;
  EXPECT_THAT(said(gathered({{0, cut("a", {4}, two)}, {1, f32}}), gathered({{0, f32}})),
              HasSubstr("'a' of the source: rank 0 has BF16 [4], rank 1 has F32 [4]"));
}

TEST(Gatherer, refuses_reports_that_contradict_themselves) {
  const auto said = [](ParameterMetadata p, int rank) {
    MetadataGatherer g;
    const auto added = g.add(RankMetadata{Rank(rank), {std::move(p)}, {}});
    return added ? "" : added.error().message;
  };
  const auto one = group({0});
  EXPECT_EQ(said(cut("a", {4}, one), 0), "");
  EXPECT_THAT(said(cut("a", {4}, one), 1), HasSubstr("rank 1: parameter 'a': its owner is rank 0"));
  EXPECT_THAT(said(cut("a", {4}, group({1})), 0),
              HasSubstr("must be in its parallel group exactly once"));
  EXPECT_THAT(said(cut("a", {4}, nullptr), 0), HasSubstr("names no tensor parallel group"));
  auto p = cut("a", {4}, one);
  p.partition_dim = 1;
  EXPECT_THAT(said(p, 0), HasSubstr("partition_dim 1 is outside its shape [4]"));
  p = cut("a", {4}, one);
  p.partition_stride = 3;
  EXPECT_THAT(said(p, 0), HasSubstr("partition_stride 3 does not divide its 4 rows"));
  p.partition_sizes = std::vector<Index>{1, 2};
  EXPECT_THAT(said(p, 0), HasSubstr("partition_sizes sum to 3"));
  p = cut("a", {4}, one);
  p.element_size = 4;
  EXPECT_THAT(said(p, 0), HasSubstr("element_size 4"));
  p = cut("a", {Index{1} << 30, Index{1} << 30}, one);
  EXPECT_THAT(said(p, 0), HasSubstr("too many elements"));
  MetadataGatherer g;
  const RankMetadata r{Rank(0), {cut("a", {4}, one)}, {}};
  EXPECT_TRUE(g.add(r).has_value());
  EXPECT_THAT(g.add(r).error().message, HasSubstr("rank 0 reports twice"));
  MetadataGatherer h;
  const RankMetadata twice{Rank(0), {cut("a", {4}, one), cut("a", {4}, one)}, {}};
  EXPECT_THAT(h.add(twice).error().message, HasSubstr("reports this name twice"));
}

TEST(Gatherer, expands_what_a_rank_reported) {
  const ModelConfig c = tiny_moe();
  const auto l = layout_of("megatron:tp=2,ep=2,pp=2", model_of(c), c);
  const GatheredMetadata all = reported_by(*l, c);
  EXPECT_EQ(all.templates.size(), 2u);  // one per stage
  for (std::size_t i = 0; i < all.ranks.size(); ++i) {
    const RankMetadata want = reported_by(*l, c, all.ranks[i].rank);
    const auto got = expand(all, i);
    ASSERT_TRUE(got.has_value()) << got.error().message;
    ASSERT_EQ(got->parameters.size(), want.parameters.size());
    EXPECT_EQ(got->layer_module_prefix_map, want.layer_module_prefix_map);
    for (std::size_t k = 0; k < want.parameters.size(); ++k) {
      const ParameterMetadata &a = got->parameters[k], &b = want.parameters[k];
      EXPECT_EQ(a.name, b.name);
      EXPECT_EQ(a.shape, b.shape);
      EXPECT_EQ(a.is_tp, b.is_tp);
      EXPECT_EQ(a.partition_stride, b.partition_stride);
      EXPECT_EQ(*a.tensor_parallel_group_ranks, *b.tensor_parallel_group_ranks);
      EXPECT_EQ(*a.data_parallel_group_ranks, *b.data_parallel_group_ranks);
      EXPECT_EQ(a.is_ep, a.global_expert_index.has_value());
    }
  }
}

}  // namespace
}  // namespace reshard
