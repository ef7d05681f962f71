// SPDX-License-Identifier: Apache-2.0
// Protects: values that source and target store differently arrive as if converted one element at a
// time, however the plan is run, and fingerprints verify them.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstring>
#include <mutex>

#include "reshard/exec/element_oracle_testutil.h"
#include "reshard/exec/in_process.h"
#include "reshard/exec/limited_transport_testutil.h"
#include "reshard/exec/rank_refit.h"
#include "reshard/exec/stream.h"
#include "reshard/exec/value_oracle_testutil.h"
#include "reshard/exec/verify/fingerprints.h"
#include "reshard/model/layout_builder.h"
#include "reshard/model/random_layout_testutil.h"
#include "reshard/transport/inproc/inproc.h"
#include "reshard/transport/testing/conformance_ranks_testutil.h"

namespace reshard {
namespace {

struct Case {
  std::shared_ptr<const ModelSpec> model = random_model();
  std::shared_ptr<const ModelLayout> from = random_layout(model, RandomForms::any),
                                     to = random_layout(model, RandomForms::any);
  Planner planner = *Planner::make(from, to);
  RankBuffers source = allocate_all(from), target = allocate_all(to);
  Case() { fill_values(source); }
  Index count_wrong(const RankBuffers& buffers) const {
    return count_wrong_values(planner, buffers);
  }
};

RC_GTEST_PROP(Conversion, direct_refits_convert_every_element, ()) {
  const Case c;
  RC_ASSERT(InProcessRefit::prepare(c.planner, c.source, c.target)->run().has_value());
  RC_ASSERT(c.count_wrong(c.target) == 0);
}

Result<> refit_rank(const Planner& planner, const RankBuffers& source, const RankBuffers& target,
                    RankEnds& ends, Limit limit, RefitPath path, Index staging) {
  LimitedTransport transport(std::move(ends.transport), limit);
  RankRefitOptions options;
  options.path = path;
  options.staging_bytes = staging;
  options.in_place_bytes = 256;
  auto refit =
      RESHARD_TRY(RankRefit::prepare(planner, &source, &target, transport, *ends.control, options));
  RESHARD_TRY(refit.run());
  return ends.control->quiesce(patient());
}

Result<> refit_ranks(const Planner& planner, const RankBuffers& source, const RankBuffers& target,
                     Limit limit, RefitPath path, Index staging = Index{32} << 10) {
  const int world = planner.ranks().members().back().value() + 1;
  return run_group_as_threads<InprocGroup>(world, [&](RankEnds& ends) {
    EXPECT_EQ(outcome(refit_rank(planner, source, target, ends, limit, path, staging)), "");
  });
}

void check_ranks(Limit limit, RefitPath path) {
  const Case c;
  const auto done = refit_ranks(c.planner, c.source, c.target, limit, path);
  if (!done) RC_FAIL(done.error().message);
  RC_ASSERT(!testing::Test::HasFailure());
  RC_ASSERT(c.count_wrong(c.target) == 0);
}

RC_GTEST_PROP(Conversion, messages_convert_every_element, ()) {
  check_ranks(Limit::none, RefitPath::message);
}
RC_GTEST_PROP(Conversion, ranks_convert_every_element_from_peers_memory, ()) {
  check_ranks(Limit::none, RefitPath::direct);
}
RC_GTEST_PROP(Conversion, ranks_convert_every_element_that_they_get, ()) {
  check_ranks(Limit::no_address, RefitPath::direct);
}

RC_GTEST_PROP(Conversion, streams_convert_every_element, ()) {
  const Case c;
  std::mutex mutex;
  const StreamSink sink = [&](Rank r, SlotId slot, Index offset,
                              std::span<const std::byte> bytes) -> Result<> {
    const std::lock_guard lock(mutex);
    std::memcpy(c.target.at(r, slot) + offset, bytes.data(), bytes.size());
    return {};
  };
  for (Rank r : c.to->ranks().members())
    RC_ASSERT(stream_rank(c.planner, c.source, r, c.to->slots_of(r), sink, {}).has_value());
  RC_ASSERT(c.count_wrong(c.target) == 0);
}

RC_GTEST_PROP(Conversion, the_proof_compares_in_the_targets_form, ()) {
  const Case c;
  RC_ASSERT(InProcessRefit::prepare(c.planner, c.source, c.target)->run().has_value());
  const auto forms = forms_of(*c.to);
  const auto before = fingerprints(c.source, 2, {}, forms), after = fingerprints(c.target, 2);
  RC_ASSERT(before.has_value() && after.has_value());
  const auto same = compare_fingerprints(*c.model, *before, *after);
  if (!same) RC_FAIL(same.error().message);
}

/// Large tensors of odd sizes, so that chunks and units end inside converted tensors.
TEST(Conversion, chunks_and_units_end_between_elements) {
  auto model = std::make_shared<ModelSpec>();
  ASSERT_TRUE(model->add("a", {1501, 333}, DType::bf16));
  ASSERT_TRUE(model->add("b", {7}, DType::u8));
  ASSERT_TRUE(model->add("c", {1499, 1001}, DType::f32));
  const auto layout = [&](int first, DType a, DType c) {
    LayoutBuilder b("test", model);
    const MeshId mesh = b.add_mesh(*Mesh::make({{"x", 3}}, Rank(first)));
    const CutId cut = b.add_cut(cut_over(0));
    const DType dtypes[] = {a, DType::u8, c};
    for (int t = 0; t < 3; ++t)
      b.add(Slot{.name = (*model)[TensorId(t)].name,
                 .dtype = dtypes[t],
                 .mesh = mesh,
                 .ranks = b.ranks_where(mesh, {}),
                 .sections = {t == 2 ? whole_tensor(*model, TensorId(t), {CutId(0), cut})
                                     : whole_tensor(*model, TensorId(t), {cut})},
                 .casts = true});
    return std::make_shared<const ModelLayout>(*std::move(b).finish());
  };
  const auto from = layout(0, DType::f32, DType::bf16), to = layout(2, DType::f16, DType::f32);
  const Planner planner = *Planner::make(from, to);
  const RankBuffers source = allocate_all(from), direct = allocate_all(to);
  fill_values(source);
  ASSERT_TRUE(InProcessRefit::prepare(planner, source, direct)->run().has_value());
  EXPECT_EQ(count_wrong_values(planner, direct), 0);
  for (const Index staging : {Index{32} << 10, Index{64} << 10})
    for (const Limit limit : {Limit::no_direct, Limit::no_address, Limit::none}) {
      const RankBuffers target = allocate_all(to);
      EXPECT_EQ(outcome(refit_ranks(planner, source, target, limit, RefitPath::automatic, staging)),
                "");
      EXPECT_EQ(count_wrong_values(planner, target), 0);
    }
}

}  // namespace
}  // namespace reshard
