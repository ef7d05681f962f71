// SPDX-License-Identifier: Apache-2.0
// Protects: what a refit does not deliver is not written: programs of conversions that deliver some
// tensors of a model change no byte of the others, however local tensors mix them; where the two
// share a scale, the plan is refused.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <optional>

#include "reshard/exec/element_oracle_testutil.h"
#include "reshard/exec/slow_executor_testutil.h"
#include "reshard/model/random_layout_testutil.h"
#include "reshard/refit/session/partial_testutil.h"
#include "reshard/refit/session/quantised_programs_testutil.h"

namespace reshard::quantised {
namespace {

constexpr std::byte kBefore{0xa5};

bool any(const std::vector<bool>& tensors) {
  return std::ranges::find(tensors, true) != tensors.end();
}

/// The outcome of one delivery.
struct Outcome {
  Index delivered = 0, refused = 0;  ///< canonical tensors.
  Index wrong = 0;                   ///< bytes.
  std::string refusal;
};

/// Delivers some tensors by the routes that a session would choose.
class Delivery {
 public:
  Delivery(const OracleSide& source, const OracleSide& target, int ranks, ConversionSide convert,
           std::vector<bool> moves)
      : source_(source),
        target_(target),
        from_(source.side()),
        into_(target.side()),
        ranks_(ranks),
        moves_(std::move(moves)),
        routes_(find_routes(from_, into_, moves_, convert)),
        written_(allocate_all(target.stored->shared_layout())) {
    fill_bytes(written_, kBefore);
  }

  Outcome run(Index staging, std::uint64_t seed) {
    if (!routes_) return {.refusal = routes_.error().message};
    std::vector<bool> delivered(moves_.size());
    for (int r = 0; r <= static_cast<int>(Route::requantise); ++r) {
      const auto route = static_cast<Route>(r);
      std::vector<bool> tensors;
      for (const Route of : routes_->of) tensors.push_back(of == route);
      // Plain tensors of a quantised side are moved in another form of its memory.
      const bool plain =
          route == Route::plain && (target_.quantised != nullptr || source_.quantised != nullptr);
      if (route == Route::none || plain || !any(tensors)) continue;
      const auto moved = std::ranges::count(tensors, true);
      if (!deliver(route, tensors, staging, seed + static_cast<std::uint64_t>(r))) {
        out_.refused += moved;
        continue;
      }
      out_.delivered += moved;
      for (std::size_t i = 0; i < tensors.size(); ++i) delivered[i] = delivered[i] || tensors[i];
    }
    out_.wrong = wrong_after_part(target_, written_, kBefore, delivered, written_.ranks());
    return out_;
  }

 private:
  bool deliver(Route route, const std::vector<bool>& tensors, Index staging, std::uint64_t seed) {
    auto plans = plan_route(route, tensors, from_, into_, *routes_);
    if (!plans) {
      EXPECT_EQ(plans.error().code, Code::unsupported) << plans.error().message;
      out_.refusal = plans.error().message;
      return false;
    }
    std::optional<RankBuffers> between;
    for (RoutePlan& plan : *plans) {
      const auto programs = compile_all(plan, ranks_, staging, seed);
      check_all(programs, plan, 2);
      const RankBuffers& read = plan.from.between != nullptr ? *between
                                : plan.from.values           ? *source_.values
                                                             : *source_.stored;
      if (plan.into.between != nullptr) between.emplace(allocate_all(routes_->between->stored));
      const RankBuffers& into = plan.into.between != nullptr ? *between : written_;
      const auto order = seed % 2 == 0 ? std::optional<std::uint64_t>() : seed;
      EXPECT_TRUE(run_slowly(programs, read, into, order));
    }
    return true;
  }

  const OracleSide &source_, &target_;
  const SessionSide from_, into_;
  int ranks_;
  std::vector<bool> moves_;
  Result<Routes> routes_;
  RankBuffers written_;
  Outcome out_;
};

class PartialPrograms : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Formats, PartialPrograms, testing::ValuesIn(cases()),
                         [](const auto& tested) { return tested.param.name; });

TEST_P(PartialPrograms, write_what_is_delivered_and_nothing_else) {
  const Case& c = GetParam();
  Job job(c);
  job.fill(1);
  std::uint64_t seed = 1;
  Index delivered = 0;
  for (const Ignored& ignored : ignored_parts())
    for (const ConversionSide convert : {ConversionSide::receiver, ConversionSide::sender}) {
      Delivery delivery(job.source, job.target, c.ranks, convert,
                        delivered_of(*job.model, ignored));
      const Outcome done = delivery.run(Index{64} << 10, seed += 17);
      EXPECT_EQ(done.wrong, 0) << ignored.name;
      delivered += done.delivered;
      if (done.refused > 0) {
        EXPECT_NE(done.refusal.find("is not, but both have one"), std::string::npos)
            << done.refusal;
      }
    }
  EXPECT_GT(delivered, 0);
}

/// A side of a random layout, quantised or not.
OracleSide random_side(const std::shared_ptr<const ModelSpec>& model, const std::string& format,
                       BlockGrid grid) {
  const auto layout = random_layout(model);
  QuantChoice choice{*quant_format_from_name(format), grid, {}, std::string()};
  for (const CanonicalTensor& t : model->tensors()) choice.tensors.insert(t.name);
  return quantise_layout(layout, choice) ? OracleSide(layout, choice) : OracleSide(layout);
}

RC_GTEST_PROP(RandomPartialPrograms, write_what_is_delivered_and_nothing_else, ()) {
  const auto model = random_matrices();
  const auto format =
      *rc::gen::element<std::string>("mxfp8", "mxfp8_swizzled", "mxfp4", "nvfp4", "nvfp4_swizzled",
                                     "fp8_block", "fp8_group", "fp8_channel", "fp8_tensor");
  OracleSide source(random_layout(model));
  OracleSide target =
      random_side(model, format, *rc::gen::element(BlockGrid::local, BlockGrid::tensor));
  fill_sides(source, target, 1);
  std::vector<bool> moves;
  for (Index i = 0; i < model->size(); ++i) moves.push_back(*rc::gen::arbitrary<bool>());
  int ranks = 1;
  for (const OracleSide* side : {&source, &target})
    ranks = std::max(ranks, side->side().values()->ranks().members().back().value() + 1);
  const auto convert = *rc::gen::element(ConversionSide::receiver, ConversionSide::sender);
  Delivery delivery(source, target, ranks, convert, moves);
  const Outcome done = delivery.run(Index{64} << 10, *rc::gen::inRange<std::uint64_t>(0, 1000));
  RC_ASSERT(done.wrong == 0);
}

}  // namespace
}  // namespace reshard::quantised
