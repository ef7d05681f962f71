// SPDX-License-Identifier: Apache-2.0
// Protects: a session whose source lacks tensors, or that moves only some, leaves the bytes of the
// others in the target as they are, in both copies of a doubled target, wherever memory is and
// whichever side converts; what cannot be left so is refused by all ranks alike.
#include <gtest/gtest.h>

#include "reshard/refit/session/partial_testutil.h"
#include "reshard/transport/inproc/inproc.h"
#include "reshard/transport/shm/shm_testutil.h"

namespace reshard::quantised {
namespace {

constexpr std::byte kFirst{0xa5}, kSecond{0x5a};

std::string_view text_of(std::byte first) { return first == kFirst ? "first" : "second"; }

/// Which option leaves tensors out: those that the source lacks, or those that are not named.
enum class By : std::uint8_t { ignore, only };

/// Refits two versions on one rank. Returns why prepare() refused, or "".
std::string run_as_rank(RankEnds& ends, PartialJob& job, const Way& way, bool shared_memory,
                        By by = By::ignore) {
  const Rank me = ends.rank();
  const auto layout = by == By::ignore ? job.source : job.whole.source.side().values();
  const RankBuffers whole = mine(*job.whole.source.stored, me);
  const std::vector<Rank> ranks(layout->ranks().contains(me) ? 1 : 0, me);
  const RefitRankSide from(*RankBuffers::allocate(layout, ranks, {.shared = true}), way.on_gpu),
      to(mine(*job.whole.target.stored, me), way.on_gpu),
      back(mine(*job.whole.target.stored, me), way.on_gpu);
  fill_bytes(to.host, kFirst);
  fill_bytes(back.host, kSecond);
  for (const RefitRankSide* side : {&to, &back}) EXPECT_EQ(outcome(side->write()), "");
  SessionSide source{.layout = layout, .buffers = from.buffers()}, target = job.whole.target.side();
  target.buffers = to.buffers();
  target.back = back.buffers();
  SessionOptions options = options_of(way);
  if (by == By::ignore) {
    options.ignore = job.names;
  } else {
    for (const CanonicalTensor& t : job.whole.model->tensors())
      if (!job.names.contains(t.name)) options.only.insert(t.name);
  }
  auto session = Session::prepare(*ends.transport, *ends.control, source, target, options);
  if (!session) {
    EXPECT_EQ(session.error().code, Code::unsupported) << session.error().message;
    EXPECT_EQ(outcome(ends.control->barrier(patient())), "") << "the group stays usable";
    return session.error().message;
  }
  for (const std::int64_t version : {1, 2}) {
    if (!shared_memory || me == Rank(0)) job.whole.fill(version);
    EXPECT_TRUE(ends.control->barrier(patient()));
    copy_part(*job.whole.source.stored, from.host);
    EXPECT_EQ(outcome(from.write()), "");
    EXPECT_EQ(outcome(session->refit(version)), "");
    EXPECT_EQ(outcome(session->verify()), "");
    if (to.buffers() != nullptr) {
      const bool first = session->target_version().buffer == 0;
      EXPECT_EQ(first, way.buffering == Buffering::in_place || version == 2);
      const RefitRankSide& now = first ? to : back;
      EXPECT_EQ(outcome(now.read()), "");
      // Both copies hold what the first one held when the session began.
      EXPECT_EQ(wrong_after_part(job.whole.target, now.host, kFirst, job.delivered, {{me}}), 0)
          << text_of(first ? kFirst : kSecond) << " copy, version " << version;
    }
    EXPECT_TRUE(ends.control->barrier(patient()));
  }
  EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
  return "";
}

std::vector<Case> partial_cases() {
  std::vector<Case> out{{"plain", even_moe(), kMegatron, kVllm, 8, "", ""}};
  for (const Case& c : cases())
    if (c.from_format.empty()) out.push_back(c);
  return out;
}

/// For slow ways.
std::vector<Case> few_partial_cases() {
  std::vector<Case> out{partial_cases().front()};
  for (const Case& c : few_cases())
    if (c.from_format.empty()) out.push_back(c);
  return out;
}

std::string name_of(const testing::TestParamInfo<std::tuple<Case, Way>>& tested) {
  return std::get<0>(tested.param).name + "_" + std::get<1>(tested.param).name;
}

class PartialSessions : public testing::TestWithParam<std::tuple<Case, Way>> {};
INSTANTIATE_TEST_SUITE_P(Formats, PartialSessions,
                         testing::ValuesIn(half_of(partial_cases(), ways(), 0)), name_of);
INSTANTIATE_TEST_SUITE_P(OnGpu, PartialSessions,
                         testing::ValuesIn(half_of(few_partial_cases(), gpu_ways(), 0)), name_of);

TEST_P(PartialSessions, leave_what_is_ignored_as_it_is_or_are_refused) {
  const auto& [c, way] = GetParam();
  const auto parts = ignored_parts();
  int refitted = 0;
  for (const Ignored& ignored : {parts[0], parts[1], parts.back()}) {
    PartialJob job(c, ignored);
    std::vector<std::string> refusals(static_cast<std::size_t>(c.ranks));
    const auto ended = run_group_as_threads<InprocGroup>(c.ranks, [&, &way = way](RankEnds& ends) {
      refusals[ends.rank().index()] = run_as_rank(ends, job, way, true);
    });
    EXPECT_EQ(outcome(ended), "") << ignored.name;
    for (const std::string& refusal : refusals) EXPECT_EQ(refusal, refusals[0]);
    if (!refusals[0].empty()) {
      EXPECT_NE(refusals[0].find("is not, but both have one"), std::string::npos) << refusals[0];
    }
    refitted += refusals[0].empty();
  }
  EXPECT_GT(refitted, 0);
}

TEST_P(PartialSessions, move_only_what_is_named) {
  const auto& [c, way] = GetParam();
  const Ignored left = ignored_parts()[1];
  PartialJob job(c, left);
  std::vector<std::string> refusals(static_cast<std::size_t>(c.ranks));
  const auto ended = run_group_as_threads<InprocGroup>(c.ranks, [&, &way = way](RankEnds& ends) {
    refusals[ends.rank().index()] = run_as_rank(ends, job, way, true, By::only);
  });
  EXPECT_EQ(outcome(ended), "") << left.name;
  for (const std::string& refusal : refusals) EXPECT_EQ(refusal, refusals[0]);
  if (!refusals[0].empty()) {
    EXPECT_NE(refusals[0].find("is not, but both have one"), std::string::npos) << refusals[0];
  }
}

TEST(PartialSessions, of_processes_leave_what_is_ignored_as_it_is) {
  for (const Ignored& ignored : ignored_parts()) {
    PartialJob job(partial_cases()[1], ignored);
    const auto ended = shm_processes("mapped,readv,ring")(
        8, [&](RankEnds& ends) { EXPECT_EQ(run_as_rank(ends, job, ways()[3], false), ""); });
    EXPECT_EQ(outcome(ended), "") << ignored.name;
  }
}

TEST(PartialSessions, name_both_tensors_of_a_scale_that_cannot_be_written) {
  Case c = partial_cases()[0];
  c.to_format = "fp8_tensor";
  c.from = "megatron:tp=2";
  c.to = "megatron:tp=2,offset=2";
  c.ranks = 4;
  PartialJob job(c, ignored_parts()[2]);
  const auto ended = run_group_as_threads<InprocGroup>(c.ranks, [&](RankEnds& ends) {
    const std::string refusal = run_as_rank(ends, job, ways()[0], true);
    EXPECT_NE(refusal.find("q_proj.weight' is delivered and "), std::string::npos) << refusal;
    EXPECT_NE(refusal.find("k_proj.weight' is not, but both have one scale"), std::string::npos)
        << refusal;
    EXPECT_NE(refusal.find("deliver both or neither"), std::string::npos) << refusal;
  });
  EXPECT_EQ(outcome(ended), "");
}

/// Doubled targets whose readers use the second copy when the session begins.
TEST(DoubledSessions, carry_what_is_ignored_from_the_copy_that_is_whole) {
  PartialJob job(partial_cases()[0], ignored_parts()[0]);
  const auto ended = run_group_as_threads<InprocGroup>(8, [&](RankEnds& ends) {
    const Rank me = ends.rank();
    const std::vector<Rank> ranks(job.source->ranks().contains(me) ? 1 : 0, me);
    const RankBuffers from = *RankBuffers::allocate(job.source, ranks),
                      to = mine(*job.whole.target.stored, me),
                      back = mine(*job.whole.target.stored, me);
    fill_bytes(to, kFirst);
    fill_bytes(back, kSecond);
    PublishedVersion published;
    published.set({TargetState::whole, 7, 1});
    SessionSide source{.layout = job.source, .buffers = ranks.empty() ? nullptr : &from},
        target = job.whole.target.side();
    const bool has_target = !to.ranks().empty();
    if (has_target) target.buffers = &to, target.back = &back, target.published = &published;
    SessionOptions options;
    options.buffering = Buffering::doubled;
    options.ignore = job.names;
    auto session = Session::prepare(*ends.transport, *ends.control, source, target, options);
    ASSERT_EQ(outcome(session), "");
    ASSERT_EQ(outcome(session->refit(8)), "");
    if (has_target) {
      EXPECT_EQ(published.target_version(), (TargetVersion{TargetState::whole, 8, 0}));
      Index first = 0;
      for (const SlotId slot : to.layout().slots_of(me))
        for (Index i = 0; i < to.bytes(me, slot); ++i) first += to.at(me, slot)[i] == kFirst;
      EXPECT_EQ(first, 0) << "bytes that were in no whole version";
    }
    EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
  });
  EXPECT_EQ(outcome(ended), "");
}

TEST(DoubledSessions, refuse_a_copy_that_lacks_memory_for_what_is_ignored) {
  PartialJob job(partial_cases()[0], ignored_parts()[3]);
  const auto ended = run_group_as_threads<InprocGroup>(8, [&](RankEnds& ends) {
    const Rank me = ends.rank();
    const std::vector<Rank> ranks(job.source->ranks().contains(me) ? 1 : 0, me);
    const RankBuffers from = *RankBuffers::allocate(job.source, ranks),
                      to = mine(*job.whole.target.stored, me);
    RankBuffers back(job.whole.target.layout);
    const RankBuffers memory = mine(*job.whole.target.stored, me);
    for (const Rank r : memory.ranks())
      for (const SlotId slot : memory.layout().slots_of(r))
        if (memory.bytes(r, slot) > 0 &&
            memory.layout().slot(slot).name.find("layers.1.input_layernorm") == std::string::npos) {
          const auto bytes = static_cast<std::size_t>(memory.bytes(r, slot));
          ASSERT_EQ(outcome(back.bind(r, slot, {memory.at(r, slot), bytes})), "");
        }
    SessionSide source{.layout = job.source, .buffers = ranks.empty() ? nullptr : &from},
        target = job.whole.target.side();
    if (!to.ranks().empty()) target.buffers = &to, target.back = &back;
    SessionOptions options;
    options.buffering = Buffering::doubled;
    options.ignore = job.names;
    const auto session = Session::prepare(*ends.transport, *ends.control, source, target, options);
    ASSERT_FALSE(session);
    EXPECT_NE(session.error().message.find("the second copy of the target has no memory for local "
                                           "tensor 'model.layers.1.input_layernorm.weight'"),
              std::string::npos)
        << session.error().message;
  });
  EXPECT_EQ(outcome(ended), "");
}

}  // namespace
}  // namespace reshard::quantised
