// SPDX-License-Identifier: Apache-2.0
// Protects: values that source and target store differently arrive as one element at a time would
// be converted, whichever way the plan is run, and the proof knows them.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "reshard/base/hash.h"
#include "reshard/exec/direct.h"
#include "reshard/exec/element_oracle_testutil.h"
#include "reshard/exec/message.h"
#include "reshard/exec/proof.h"
#include "reshard/exec/stream.h"
#include "reshard/model/elements_testutil.h"
#include "reshard/model/layout_builder.h"
#include "reshard/model/random_layout_testutil.h"
#include "reshard/transform/convert.h"
#include "reshard/transport/inproc.h"
#include "reshard/transport/rank_threads_testutil.h"

namespace reshard {
namespace {

/// Calls f(tensor, element of the whole tensor, its bytes) for each element of each fragment.
template <class F>
void for_each_stored(const RankBuffers& buffers, F&& f) {
  const ModelLayout& layout = buffers.layout();
  for (Rank r : buffers.ranks()) {
    for (SlotId slot : layout.slots_of(r)) {
      const auto width = static_cast<std::size_t>(bits(layout.slot(slot).dtype) / 8);
      for (const Fragment& fragment : layout.local(slot, r).fragments) {
        for_each_element(layout.model(), fragment, [&](Index element, Index local) {
          f(fragment.tensor, element,
            std::span(buffers.at(r, slot) + local * static_cast<Index>(width), width));
        });
      }
    }
  }
}

/// One element as the source stores it: a small negative number, so that every map and its inverse
/// is defined.
std::vector<std::byte> source_value(const ModelLayout& from, TensorId id, Index element) {
  const StoredForm form = from.form(id);
  std::vector<std::byte> bytes(static_cast<std::size_t>(bits(form.dtype) / 8));
  const std::uint64_t random =
      mix64(static_cast<std::uint64_t>(id.value()) << 40 | static_cast<std::uint64_t>(element));
  if (!is_convertible(form.dtype)) {
    bytes[0] = static_cast<std::byte>(random);
    return bytes;
  }
  const float value = -0.5F - static_cast<float>(random % 4096) / 1024;
  std::byte raw[4];
  std::memcpy(raw, &value, 4);
  convert_values({{DType::f32}, {form.dtype}}, raw, bytes.data(), 1);
  return bytes;
}

std::vector<std::byte> target_value(const Planner& planner, TensorId id, Index element) {
  const auto stored = source_value(planner.source(), id, element);
  const Conversion conversion = planner.conversion(id);
  if (!conversion.converts()) return stored;
  std::vector<std::byte> bytes(static_cast<std::size_t>(bits(conversion.to.dtype) / 8));
  convert_values(conversion, stored.data(), bytes.data(), 1);
  return bytes;
}

struct Case {
  std::shared_ptr<const ModelSpec> model = random_model();
  std::shared_ptr<const ModelLayout> from = random_layout(model, RandomForms::any),
                                     to = random_layout(model, RandomForms::any);
  Planner planner = *Planner::make(from, to);
  RankBuffers source = allocate_all(from), target = allocate_all(to);
  Case() {
    for_each_stored(source, [&](TensorId id, Index element, std::span<std::byte> bytes) {
      std::ranges::copy(source_value(*from, id, element), bytes.begin());
    });
  }
  Index count_wrong(const RankBuffers& buffers) const {
    Index wrong = 0;
    for_each_stored(buffers, [&](TensorId id, Index element, std::span<std::byte> bytes) {
      wrong += !std::ranges::equal(target_value(planner, id, element), bytes);
    });
    return wrong;
  }
};

RC_GTEST_PROP(Conversion, direct_refits_convert_every_element, ()) {
  const Case c;
  RC_ASSERT(DirectRefit::prepare(c.planner, c.source, c.target)->run().has_value());
  RC_ASSERT(c.count_wrong(c.target) == 0);
}

Result<> message_rank(const Case& c, InprocGroup& group, Rank r) {
  const auto transport = RESHARD_TRY(group.transport(r));
  const auto control = RESHARD_TRY(group.control(r));
  MessageOptions options;
  options.staging_bytes = Index{32} << 10;
  auto refit = RESHARD_TRY(
      MessageRefit::prepare(c.planner, &c.source, &c.target, *transport, *control, options));
  RESHARD_TRY(refit.run());
  return {};
}

RC_GTEST_PROP(Conversion, messages_convert_every_element, ()) {
  const Case c;
  const int world = c.planner.ranks().members().back().value() + 1;
  auto group = *InprocGroup::create(world);
  const auto done = run_ranks(world, [&](Rank r) { return message_rank(c, group, r); });
  if (!done) RC_FAIL(done.error().message);
  RC_ASSERT(c.count_wrong(c.target) == 0);
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
    RC_ASSERT(stream_rank(c.planner, c.source, r, c.to->slots_of(r), sink, {}, {}).has_value());
  RC_ASSERT(c.count_wrong(c.target) == 0);
}

RC_GTEST_PROP(Conversion, the_proof_compares_in_the_targets_form, ()) {
  const Case c;
  RC_ASSERT(DirectRefit::prepare(c.planner, c.source, c.target)->run().has_value());
  const auto forms = forms_of(*c.to);
  const auto before = fingerprints(c.source, 2, {}, forms), after = fingerprints(c.target, 2);
  RC_ASSERT(before.has_value() && after.has_value());
  const auto same = same_prints(*c.model, *before, *after);
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
  const RankBuffers source = allocate_all(from), target = allocate_all(to),
                    direct = allocate_all(to);
  for_each_stored(source, [&](TensorId id, Index element, std::span<std::byte> bytes) {
    std::ranges::copy(source_value(*from, id, element), bytes.begin());
  });
  ASSERT_TRUE(DirectRefit::prepare(planner, source, direct)->run().has_value());
  auto group = *InprocGroup::create(5);
  const auto done = run_ranks(5, [&](Rank r) -> Result<> {
    const auto transport = RESHARD_TRY(group.transport(r));
    const auto control = RESHARD_TRY(group.control(r));
    MessageOptions options;
    options.staging_bytes = Index{64} << 10;
    auto refit = RESHARD_TRY(
        MessageRefit::prepare(planner, &source, &target, *transport, *control, options));
    RESHARD_TRY(refit.run());
    return {};
  });
  ASSERT_TRUE(done) << done.error().message;
  for (const RankBuffers* buffers : {&target, &direct}) {
    Index wrong = 0;
    for_each_stored(*buffers, [&](TensorId id, Index element, std::span<std::byte> bytes) {
      wrong += !std::ranges::equal(target_value(planner, id, element), bytes);
    });
    EXPECT_EQ(wrong, 0);
  }
}

}  // namespace
}  // namespace reshard
