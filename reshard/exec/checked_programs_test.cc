// SPDX-License-Identifier: Apache-2.0
// Protects: every program that is compiled obeys its laws, and programs that obey them put every
// element in place, in whatever order their waits allow. RC_PARAMS sets the number of groups.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstring>

#include "reshard/exec/random_job_testutil.h"
#include "reshard/exec/slow_executor_testutil.h"
#include "reshard/exec/value_oracle_testutil.h"
#include "reshard/plan/relays/random_replicas_testutil.h"
#include "reshard/program/check.h"
#include "reshard/program/compile.h"
#include "reshard/transform/quantise.h"

namespace reshard {
namespace {

std::string said(const Result<>& result) { return result ? "" : result.error().message; }

/// Compiles all ranks' programs with a random way between each two, and checks them.
struct RandomPrograms {
  CompileOptions options;
  std::vector<PairPath> ways;
  std::vector<Program> programs;

  RandomPrograms(const Planner& planner, const SideConversion& before,
                 const SideConversion& after) {
    const int world = planner.ranks().members().back().value() + 1;
    // Less than users can ask for, too, so that the ring turns although the tensors are small.
    options.staging_bytes = *rc::gen::element<Index>(1024, 4096, 32 << 10, 1 << 20);
    options.in_place_bytes = *rc::gen::element<Index>(1, 16, 256, 64 << 10);
    options.unit_bytes = *rc::gen::element<Index>(1, 64, 512, 512 << 10);
    options.world = world;
    options.before = before;
    options.after = after;
    const auto mostly = *rc::gen::element(PairPath::mapped, PairPath::get, PairPath::message);
    ways = *rc::gen::container<std::vector<PairPath>>(
        static_cast<std::size_t>(world * world),
        rc::gen::element(PairPath::mapped, PairPath::get, PairPath::message, mostly, mostly));
    for (const PairPath way : ways) {
      options.reads |= way != PairPath::message;
      options.gets |= way == PairPath::get;
    }
    compile(planner, world);
    if (*rc::gen::arbitrary<bool>()) {
      options.round_bits = 63;
      compile(planner, world);
      for (const Program& p : programs)
        options.round_bits = std::min(options.round_bits, p.round_bits);
      compile(planner, world);
    }
    check(planner);
  }

  void compile(const Planner& planner, int world) {
    programs.clear();
    for (int r = 0; r < world; ++r) {
      CompileOptions mine = options;
      mine.path_from = [&, r](Rank src) {
        return ways[static_cast<std::size_t>(src.value() * world + r)];
      };
      mine.path_to = [&, r](Rank dst) {
        return ways[static_cast<std::size_t>(r * world + dst.value())];
      };
      auto program = compile_rank(planner, planner.rank_plan(Rank(r)), mine);
      if (!program) RC_FAIL(program.error().message);
      programs.push_back(*std::move(program));
    }
  }

  void check(const Planner& planner) const {
    for (const Program& p : programs) {
      const Rank to[] = {p.rank};
      const auto delivers = delivered_bytes(planner, to, options.after);
      RC_ASSERT(delivers.has_value());
      ProgramExpectations expected;
      expected.delivers = &*delivers;
      const bool converts = options.before.layout != nullptr || options.after.layout != nullptr;
      if (!converts) expected.cap = options.staging_bytes;
      RC_ASSERT(said(check_program(p, expected)) == "");
    }
    RC_ASSERT(said(check_programs(programs)) == "");
  }
};

void wipe_all(const RankBuffers& buffers) {
  for (const Rank r : buffers.ranks()) wipe(buffers, r, 0xA5);
}

RC_GTEST_PROP(CheckedPrograms, put_every_element_in_place_in_any_order, ()) {
  const auto model = random_model();
  const auto from = random_layout(model, RandomForms::any),
             to = random_layout(model, RandomForms::any);
  const Planner planner = *Planner::make(from, to);
  const RankBuffers source = allocate_all(from), target = allocate_all(to);
  fill_values(source);
  const RandomPrograms compiled(planner, {}, {});
  for (const std::optional<std::uint64_t> seed :
       {std::optional<std::uint64_t>(), std::optional(*rc::gen::arbitrary<std::uint64_t>())}) {
    wipe_all(target);
    RC_ASSERT(run_slowly(compiled.programs, source, target, seed));
    RC_ASSERT(count_wrong_values(planner, target) == 0);
  }
  const auto ranks = to->ranks().members();
  const Program here[] = {*compile_in_process(planner, ranks)};
  const auto delivers = *delivered_bytes(planner, ranks);
  RC_ASSERT(said(check_program(here[0], {.delivers = &delivers, .cap = 0})) == "");
  wipe_all(target);
  RC_ASSERT(run_slowly(here, source, target, *rc::gen::arbitrary<std::uint64_t>()));
  RC_ASSERT(count_wrong_values(planner, target) == 0);
}

RC_GTEST_PROP(CheckedPrograms, relay_every_element_in_any_order, ()) {
  const RandomReplicas replicas;
  auto from = replicas.source, to = replicas.target;
  if (*rc::gen::element(0, 0, 1) == 1) {
    const auto model = random_model();
    from = random_layout(model, RandomForms::any);
    to = random_layout(model, RandomForms::any);
  }
  const Planner planner = *Planner::make(from, to, {{}, {}, random_relays(64)});
  const RankBuffers source = allocate_all(from), target = allocate_all(to);
  fill_values(source);
  const RandomPrograms compiled(planner, {}, {});
  wipe_all(target);
  RC_ASSERT(run_slowly(compiled.programs, source, target, *rc::gen::arbitrary<std::uint64_t>()));
  RC_ASSERT(count_wrong_values(planner, target) == 0);
  RC_CLASSIFY(planner.uses_relays());
}

/// One side of a plan of values that may be stored quantised.
struct MaybeQuantised {
  std::shared_ptr<const ModelLayout> values;
  std::optional<QuantisedLayout> layout;
  explicit MaybeQuantised(const std::shared_ptr<const ModelSpec>& model)
      : values(random_layout(model)) {
    QuantChoice choice;
    for (const CanonicalTensor& t : model->tensors()) choice.tensors.insert(t.name);
    choice.format = *quant_format_from_name(*rc::gen::element<std::string>(
        "mxfp8", "mxfp8_swizzled", "mxfp4", "nvfp4", "nvfp4_swizzled", "fp8_block", "fp8_group",
        "fp8_channel", "fp8_tensor"));
    if (!*rc::gen::arbitrary<bool>()) return;
    if (auto made = quantise_layout(values, choice)) layout = *std::move(made);
  }
  std::shared_ptr<const ModelLayout> memory() const { return layout ? layout->stored : values; }
  SideConversion conversion(bool quantises) const {
    SideConversion side;
    if (!layout) return side;
    side = {&*layout, {}, quantises};
    for (const auto& pair : layout->pairs) side.slots.push_back(pair.values);
    return side;
  }
  /// Calls f(values, stored) for each matrix.
  template <class F>
  void for_each(const RankBuffers& plain, const RankBuffers& stored, F&& f) const {
    const QuantFormat& format = layout->choice.format;
    for (const Rank r : plain.ranks())
      for (const auto& pair : layout->pairs) {
        const Slot& slot = values->slot(pair.values);
        if (!values->rank_set(slot.ranks).contains(r)) continue;
        const Index width = bits(slot.dtype) / 8, scale = bits(format.scale) / 8;
        for (const QuantBlockArea& a : block_areas(*layout, pair, r))
          if (a.rows > 0 && a.cols > 0)
            f(FloatMatrix{plain.at(r, pair.values) + a.data_offset * width, slot.dtype, a.rows,
                          a.cols, a.data_row * width},
              QuantMatrix{format, stored.at(r, pair.data) + a.data_offset * bits(format.data) / 8,
                          a.rows, a.cols, a.data_row * bits(format.data) / 8,
                          stored.at(r, pair.scales) + a.scale_offset * scale, a.scale_row * scale,
                          pair.factor.value() < 0
                              ? nullptr
                              : stored.at(r, pair.factor) + a.factor_offset * 4});
      }
  }
};

RC_GTEST_PROP(CheckedPrograms, convert_what_is_stored_quantised, ()) {
  const auto model = random_matrices();
  const MaybeQuantised from(model), to(model);
  RC_PRE(from.layout.has_value() || to.layout.has_value());
  const Planner planner = *Planner::make(from.values, to.values);
  const RankBuffers plain = allocate_all(from.values), wanted = allocate_all(to.values);
  fill_values(plain);
  const RankBuffers source = allocate_all(from.memory());
  if (from.layout) {
    from.for_each(plain, source, [](const FloatMatrix& v, const QuantMatrix& q) {
      quantise(v, q);
      dequantise_rows(q, v, 0, v.rows);
    });
  }
  const Program move[] = {*compile_in_process(planner, to.values->ranks().members())};
  // Values that the plan does not deliver are quantised as zeros; in a plain target they stay.
  for (const Rank r : wanted.ranks()) wipe(wanted, r, to.layout ? 0 : 0xA5);
  RC_ASSERT(run_slowly(move, plain, wanted));
  const RankBuffers target = allocate_all(to.memory()), good = allocate_all(to.memory());
  wipe_all(good);
  if (to.layout)
    to.for_each(wanted, good, [](const FloatMatrix& v, const QuantMatrix& q) { quantise(v, q); });
  const RandomPrograms compiled(planner, from.conversion(false), to.conversion(true));
  for (const std::optional<std::uint64_t> seed :
       {std::optional<std::uint64_t>(), std::optional(*rc::gen::arbitrary<std::uint64_t>())}) {
    wipe_all(target);
    RC_ASSERT(run_slowly(compiled.programs, from.layout ? source : plain, target, seed));
    const RankBuffers& right = to.layout ? good : wanted;
    for (const Rank r : target.ranks())
      for (const SlotId slot : target.layout().slots_of(r))
        if (target.bytes(r, slot) > 0)
          RC_ASSERT(std::memcmp(target.at(r, slot), right.at(r, slot),
                                static_cast<std::size_t>(target.bytes(r, slot))) == 0);
  }
}

}  // namespace
}  // namespace reshard
