// SPDX-License-Identifier: Apache-2.0
// Protects: verification detects a wrong converted byte, even if nothing was verified before, and a
// source that changed; a conversion during the copy needs no staging tensors.
#include <gtest/gtest.h>

#include "reshard/refit/conversion/routes.h"
#include "reshard/refit/session/quantised_suite_testutil.h"
#include "reshard/transport/inproc/inproc.h"

namespace reshard::quantised {
namespace {

Case case_of(const std::string& name) {
  for (const Case& c : cases())
    if (c.name == name) return c;
  ADD_FAILURE() << name;
  return cases().front();
}

/// A rank's memory and its session.
struct Fixture {
  RankBuffers from, to, back;
  std::optional<Session> session;

  Fixture(RankEnds& ends, const Job& job, const SessionOptions& options)
      : from(mine(*job.source.stored, ends.rank())),
        to(mine(*job.target.stored, ends.rank())),
        back(mine(*job.target.stored, ends.rank())) {
    SessionSide source = job.source.side(), target = job.target.side();
    if (!from.ranks().empty()) source.buffers = &from;
    if (!to.ranks().empty()) {
      target.buffers = &to;
      target.back = &back;
    }
    auto made = Session::prepare(*ends.transport, *ends.control, source, target, options);
    EXPECT_EQ(outcome(made), "");
    session.emplace(*std::move(made));
    copy_to(*job.source.stored, from, ends.rank());
  }
  const RankBuffers& now() const { return session->target_version().buffer == 0 ? to : back; }
};

/// The last local tensor of data (or of scales) on a rank.
SlotId converted_slot(const Job& job, bool scales) {
  const QuantisedLayout& layout = *job.target.side().quantised;
  return scales ? layout.pairs.back().scales : layout.pairs.back().data;
}

class ConvertedProof : public testing::TestWithParam<std::tuple<std::string, Way, VerifyMode>> {};
INSTANTIATE_TEST_SUITE_P(Ways, ConvertedProof,
                         testing::Combine(testing::Values("mxfp8", "mxfp8_both_cut",
                                                          "fp8_block_to_mxfp8_cut",
                                                          "fp8_block_tensor_grid_cut",
                                                          "fp8_block_to_mxfp8", "nvfp4_swizzled"),
                                          testing::ValuesIn(ways()),
                                          testing::Values(VerifyMode::never, VerifyMode::always)),
                         [](const auto& tested) {
                           return std::get<0>(tested.param) + "_" + std::get<1>(tested.param).name +
                                  (std::get<2>(tested.param) == VerifyMode::always ? "_always"
                                                                                   : "_never");
                         });

TEST_P(ConvertedProof, finds_a_wrong_byte_and_names_its_tensor) {
  const auto& [name, way, when] = GetParam();
  Job job(case_of(name));
  job.fill(1);
  const Rank spoiler = job.target.stored->layout().ranks().members().back();
  const auto ended = run_group_as_threads<InprocGroup>(
      job.of.ranks, [&, &way = way, &when = when](RankEnds& ends) {
        SessionOptions options = options_of(way);
        options.verify = when;
        Fixture f(ends, job, options);
        std::int64_t version = 0;
        for (const bool scales : {false, true}) {
          ASSERT_EQ(outcome(f.session->refit(version++)), "");
          ASSERT_EQ(outcome(f.session->verify()), "");
          const SlotId slot = converted_slot(job, scales);
          if (ends.rank() == spoiler) f.now().at(spoiler, slot)[1] ^= std::byte{4};
          const auto proved = f.session->verify();
          ASSERT_FALSE(proved);
          EXPECT_EQ(proved.error().code, Code::corrupt) << proved.error().message;
          EXPECT_NE(proved.error().message.find("tensor '"), std::string::npos);
          ASSERT_TRUE(ends.control->barrier(patient()));
        }
        // The group stays usable.
        ASSERT_EQ(outcome(f.session->refit(version++)), "");
        EXPECT_EQ(outcome(f.session->verify()), "");
        EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
      });
  EXPECT_EQ(outcome(ended), "");
}

TEST(ConvertedProofs, find_a_source_that_is_another_one) {
  for (const Way& way : ways()) {
    Job job(case_of("mxfp8"));
    job.fill(1);
    const auto ended = run_group_as_threads<InprocGroup>(job.of.ranks, [&](RankEnds& ends) {
      SessionOptions options = options_of(way);
      options.verify = VerifyMode::never;
      Fixture f(ends, job, options);
      ASSERT_EQ(outcome(f.session->refit(0)), "") << way.name;
      ASSERT_TRUE(ends.control->barrier(patient()));
      if (ends.rank() == Rank(0)) job.fill(2);
      ASSERT_TRUE(ends.control->barrier(patient()));
      copy_to(*job.source.stored, f.from, ends.rank());
      ASSERT_TRUE(ends.control->barrier(patient()));
      const auto proved = f.session->verify();
      ASSERT_FALSE(proved) << way.name;
      EXPECT_EQ(proved.error().code, Code::corrupt);
      EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
    });
    EXPECT_EQ(outcome(ended), "");
  }
}

TEST(ConvertedOnTheWay, needs_no_memory_to_land_in) {
  constexpr Index kCap = Index{64} << 10;
  for (const char* name :
       {"mxfp8", "fp8_block_cut", "from_fp8_block_cut", "fp8_tensor", "mxfp8_both_cut"}) {
    Job job(case_of(name));
    job.fill(1);
    const auto ended = run_group_as_threads<InprocGroup>(job.of.ranks, [&](RankEnds& ends) {
      Way way = ways().front();
      way.staging = kCap;
      Fixture f(ends, job, options_of(way));
      ASSERT_EQ(outcome(f.session->refit(0)), "") << name;
      EXPECT_EQ(f.session->path(), "direct");
      // A row of blocks of 128 x 512 values may exceed the cap; staging all values needs far more.
      EXPECT_LE(f.session->staging_bytes(), 6 * kCap) << name;
      if (!f.to.ranks().empty()) {
        EXPECT_EQ(different_bytes(f.now(), *job.target.stored, ends.rank()), 0) << name;
      }
      EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
    });
    EXPECT_EQ(outcome(ended), "");
  }
}

}  // namespace
}  // namespace reshard::quantised
