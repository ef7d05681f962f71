// SPDX-License-Identifier: Apache-2.0
// Protects: ranks that disagree, and memory, layouts or versions that changed, are errors on all
// ranks that name the rank and the cause, before a byte moves.
#include <gtest/gtest.h>

#include "reshard/refit/session/begin.h"
#include "reshard/refit/session/session_testutil.h"
#include "reshard/transport/inproc/inproc.h"

namespace reshard {
namespace {

using session::BeginRecord;
using session::BeginRecords;
using session::BeginWords;
using session::exchange_records;

constexpr int kRanks = 4;

SessionLayouts collocated_job() { return {tiny_moe(), "megatron:tp=4", "vllm:tp=4", kRanks}; }

void on_all(const RankBody& body) {
  EXPECT_EQ(outcome(run_group_as_threads<InprocGroup>(kRanks, body)), "");
}

/// Prepares after `change` was applied to rank 2's arguments, and expects this error on all ranks.
void expect_refused(const std::function<void(SessionMemory&, SessionSide& source,
                                             SessionSide& target, SessionOptions&)>& change,
                    const std::vector<std::string>& texts, int rank = 2) {
  const SessionLayouts job = collocated_job();
  on_all([&](RankEnds& ends) {
    SessionMemory memory(job, ends.rank());
    SessionSide source = memory.source_side(), target = memory.target_side();
    SessionOptions options;
    if (rank < 0 || ends.rank() == Rank(rank)) change(memory, source, target, options);
    expect_error(Session::prepare(*ends.transport, *ends.control, source, target, options),
                 Code::invalid_argument, texts);
    // The group stays usable.
    EXPECT_EQ(outcome(ends.control->barrier(patient())), "");
  });
}

TEST(SessionPrepare, names_the_rank_whose_layout_differs) {
  const SessionLayouts other(tiny_moe(), "megatron:tp=2,pp=2", "vllm:tp=2", kRanks);
  expect_refused(
      [&](SessionMemory& memory, SessionSide& source, SessionSide& target, SessionOptions&) {
        memory = SessionMemory(other, Rank(2));
        source = memory.source_side();
        target = memory.target_side();
      },
      {"rank 2's source layout differs from rank 0's"});
}

TEST(SessionPrepare, names_the_rank_whose_options_differ) {
  const auto differs = [](auto change, const std::string& text) {
    expect_refused([&](SessionMemory&, SessionSide&, SessionSide&,
                       SessionOptions& options) { change(options); },
                   {"rank 2's session option " + text + "; all ranks must pass"});
  };
  differs([](SessionOptions& o) { o.verify = VerifyMode::always; },
          "verify (always) differs from rank 0's (never)");
  differs([](SessionOptions& o) { o.convert = ConversionSide::sender; },
          "convert (sender) differs from rank 0's (receiver)");
  differs([](SessionOptions& o) { o.refit.path = RefitPath::message; },
          "path (message) differs from rank 0's (automatic)");
  differs([](SessionOptions& o) { o.routes = RouteMode::automatic; },
          "routes (auto) differs from rank 0's (direct)");
  differs([](SessionOptions& o) { o.replan = true; },
          "replan (true) differs from rank 0's (false)");
  differs([](SessionOptions& o) { o.ignore = {"lm_head.weight"}; },
          "ignore or only differs from rank 0's");
  differs([](SessionOptions& o) { o.only = {"lm_head.weight"}; },
          "ignore or only differs from rank 0's");
}

TEST(SessionPrepare, names_an_option_that_a_rank_gets_wrong_on_the_wire) {
  BeginRecords records(3);
  records[1].options = 0xf;
  expect_error(session::same_job(records), Code::invalid_argument,
               {"rank 1's session option buffering (unknown value 15)", "rank 0's (in_place)"});
}

TEST(SessionPrepare, names_the_rank_without_a_layout_or_a_second_copy) {
  expect_refused([](SessionMemory&, SessionSide& source, SessionSide&,
                    SessionOptions&) { source.layout = nullptr; },
                 {"rank 2: the source needs one of `layout` and `quantised`"});
  expect_refused(
      [](SessionMemory&, SessionSide&, SessionSide& target, SessionOptions& options) {
        options.buffering = Buffering::doubled;
        target.back = nullptr;
      },
      {"rank 2: doubled buffering needs"});
}

TEST(SessionPrepare, tells_all_ranks_why_one_cannot_use_its_memory) {
  expect_refused([](SessionMemory&, SessionSide& source, SessionSide&,
                    SessionOptions&) { source.trouble = "tensor 'x' is sparse"; },
                 {"rank 2: tensor 'x' is sparse"});
}

TEST(SessionPrepare, refuses_memory_of_another_layout) {
  expect_refused([](SessionMemory& memory, SessionSide& source, SessionSide&,
                    SessionOptions&) { source.buffers = &memory.target; },
                 {"rank 2: the source's buffers are of another layout object"});
}

TEST(SessionPrepare, refuses_a_group_that_is_too_small) {
  const SessionLayouts wide(tiny_moe(), "megatron:tp=4", "vllm:tp=4,offset=4", kRanks);
  expect_refused(
      [&](SessionMemory& memory, SessionSide& source, SessionSide& target, SessionOptions&) {
        memory = SessionMemory(wide, Rank(0));
        source = memory.source_side();
        target = memory.target_side();
      },
      {"the target needs rank 7 but the group has 4 ranks"}, -1);
}

/// A tensor that only one layout has is an error that names it, unless it is ignored.
TEST(SessionPrepare, names_a_tensor_that_one_side_lacks) {
  const ModelConfig config = tiny_deepseek();
  const auto model = model_of(config);
  SessionLayouts job = collocated_job();
  job.from = layout_of("megatron:tp=4,mtp=0", model, config);
  job.to = layout_of("vllm:tp=4,mtp=1", model, config);
  for (const bool ignored : {false, true})
    on_all([&](RankEnds& ends) {
      SessionMemory memory(job, ends.rank());
      SessionOptions options;
      std::string missing;
      for (Index t = 0; t < model->size(); ++t) {
        const TensorId id(static_cast<TensorId::rep>(t));
        if (!job.from->parts_of(id).empty() || job.to->parts_of(id).empty()) continue;
        if (missing.empty()) missing = (*model)[id].name;
        if (ignored) options.ignore.insert((*model)[id].name);
      }
      ASSERT_NE(missing, "");
      auto session = memory.prepare(ends, options);
      if (ignored) {
        ASSERT_EQ(outcome(session), "");
        EXPECT_EQ(outcome(session->refit(1)), "");
        EXPECT_EQ(outcome(session->verify()), "");
        EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
      } else {
        expect_error(session, Code::not_found, {missing});
      }
    });
}

TEST(SessionPrepare, names_an_ignored_tensor_that_the_model_lacks_and_the_closest) {
  const SessionLayouts job = collocated_job();
  on_all([&](RankEnds& ends) {
    SessionMemory memory(job, ends.rank());
    SessionOptions options;
    options.ignore = {"model.norm.weight", "lm_haed.weight"};
    expect_error(memory.prepare(ends, options), Code::not_found,
                 {"tensor 'lm_haed.weight' is ignored but not in the model (did you mean "
                  "'lm_head.weight'?)"});
    EXPECT_EQ(outcome(ends.control->barrier(patient())), "");
  });
}

/// A session that has refitted version 5, on each rank.
void with_session(bool replan, Buffering buffering,
                  const std::function<void(RankEnds&, SessionMemory&, Session&)>& body) {
  const SessionLayouts job = collocated_job();
  on_all([&](RankEnds& ends) {
    SessionMemory memory(job, ends.rank());
    SessionOptions options;
    options.buffering = buffering;
    options.replan = replan;
    auto session = memory.prepare(ends, options);
    ASSERT_EQ(outcome(session), "");
    memory.source_bytes.fill(memory.source, 5);
    ASSERT_EQ(outcome(session->refit(5)), "");
    body(ends, memory, *session);
    EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
  });
}

class SessionBegin : public testing::TestWithParam<Buffering> {};
INSTANTIATE_TEST_SUITE_P(Copies, SessionBegin,
                         testing::Values(Buffering::in_place, Buffering::doubled));

TEST_P(SessionBegin, takes_ascending_versions_only_and_goes_on_after_it_refused) {
  with_session(false, GetParam(), [](RankEnds& ends, SessionMemory& memory, Session& session) {
    const TargetVersion before = session.target_version();
    expect_error(session.refit(5), Code::invalid_argument,
                 {"version 5 is not above version 5", "rank 0", "target is whole at version 5"});
    expect_error(session.refit(-1), Code::invalid_argument, {"version -1 is not from 0 to"});
    expect_error(session.refit(kMaxVersion + 1), Code::invalid_argument, {"is not from 0 to"});
    expect_error(session.refit(ends.rank() == Rank(1) ? 8 : 7), Code::invalid_argument,
                 {"rank 1 refits version 8 but rank 0 version 7"});
    EXPECT_EQ(session.target_version(), before);
    EXPECT_EQ(memory.wrong(before), 0);
    memory.source_bytes.fill(memory.source, 9);
    EXPECT_EQ(outcome(session.refit(9)), "");
    EXPECT_EQ(session.target_version().version, 9);
    EXPECT_EQ(memory.wrong(session.target_version()), 0);
  });
}

TEST_P(SessionBegin, notices_memory_that_moved_on_one_rank) {
  const Buffering buffering = GetParam();
  with_session(false, buffering, [](RankEnds& ends, SessionMemory& memory, Session& session) {
    const SessionLayouts job{memory.source.shared_layout(), memory.target.shared_layout(), kRanks};
    const SessionMemory other(job, ends.rank());
    const bool moves = ends.rank() == Rank(3);
    if (moves) session.update(other.source_side(), memory.target_side());
    expect_error(session.refit(6), Code::invalid_argument,
                 {"rank 3: source tensor '", "is at another address"});
    if (moves) session.update(memory.source_side(), other.target_side());
    expect_error(session.refit(6), Code::invalid_argument, {"rank 3: target tensor '"});
    EXPECT_EQ(session.target_version().version, 5);
    if (moves) session.update(memory.source_side(), memory.target_side());
    EXPECT_EQ(outcome(session.refit(6)), "");
  });
}

TEST_P(SessionBegin, tells_all_ranks_why_one_cannot_use_its_memory) {
  with_session(false, GetParam(), [](RankEnds& ends, SessionMemory& memory, Session& session) {
    SessionSide target = memory.target_side();
    target.trouble = "target tensor 'x' was freed";
    if (ends.rank() == Rank(2)) session.update(memory.source_side(), target);
    expect_error(session.refit(6), Code::invalid_argument,
                 {"failed at begin", "rank 2: target tensor 'x' was freed", "whole at version 5"});
    if (ends.rank() == Rank(2)) session.update(memory.source_side(), memory.target_side());
    EXPECT_EQ(outcome(session.refit(6)), "");
  });
}

TEST_P(SessionBegin, notices_memory_that_was_bound_elsewhere) {
  const SessionLayouts job = collocated_job();
  on_all([&](RankEnds& ends) {
    SessionMemory memory(job, ends.rank());
    RankBuffers bound(job.from);
    const SlotId first = job.from->slots_of(ends.rank()).front();
    for (const SlotId slot : job.from->slots_of(ends.rank()))
      ASSERT_TRUE(bound.bind(ends.rank(), slot,
                             {memory.source.at(ends.rank(), slot),
                              static_cast<std::size_t>(memory.source.bytes(ends.rank(), slot))}));
    SessionSide source = memory.source_side();
    source.buffers = &bound;
    auto session =
        Session::prepare(*ends.transport, *ends.control, source, memory.target_side(), {});
    ASSERT_EQ(outcome(session), "");
    EXPECT_EQ(outcome(session->refit(1)), "");
    std::vector<std::byte> elsewhere(static_cast<std::size_t>(bound.bytes(ends.rank(), first)));
    if (ends.rank() == Rank(1)) {
      ASSERT_TRUE(bound.bind(ends.rank(), first, elsewhere));
    }
    expect_error(session->refit(2), Code::invalid_argument,
                 {"rank 1: source tensor '" + job.from->slot(first).name + "'"});
    EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
  });
}

TEST_P(SessionBegin, plans_anew_where_that_is_allowed) {
  with_session(true, GetParam(), [](RankEnds& ends, SessionMemory& memory, Session& session) {
    const std::uint64_t before = session.digest();
    // Other memory on one rank.
    const SessionLayouts job{memory.source.shared_layout(), memory.target.shared_layout(), kRanks};
    const SessionMemory moved(job, ends.rank());
    const bool moves = ends.rank() == Rank(3);
    if (moves) session.update(moved.source_side(), moved.target_side());
    const SessionMemory& now = moves ? moved : memory;
    now.source_bytes.fill(now.source, 6);
    auto report = session.refit(6);
    ASSERT_EQ(outcome(report), "");
    EXPECT_GT(report->plan_seconds, 0);
    EXPECT_EQ(now.wrong(session.target_version()), 0);
    EXPECT_NE(session.digest(), before);
    // Another layout on all.
    const SessionLayouts other(tiny_moe(), "megatron:tp=2,pp=2,ep=2,etp=1", "vllm:tp=2", kRanks);
    const SessionMemory next(other, ends.rank());
    session.update(next.source_side(), next.target_side());
    next.source_bytes.fill(next.source, 7);
    report = session.refit(7);
    ASSERT_EQ(outcome(report), "");
    EXPECT_GT(report->plan_seconds, 0);
    EXPECT_EQ(next.wrong(session.target_version()), 0);
    next.source_bytes.fill(next.source, 8);
    report = session.refit(8);
    ASSERT_EQ(outcome(report), "");
    EXPECT_EQ(report->plan_seconds, 0);
    EXPECT_EQ(next.wrong(session.target_version()), 0);
    EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
  });
}

TEST_P(SessionBegin, refuses_a_layout_that_changed_on_one_rank) {
  with_session(true, GetParam(), [](RankEnds& ends, SessionMemory& memory, Session& session) {
    const SessionLayouts other(tiny_moe(), "megatron:tp=2,pp=2,ep=2,etp=1", "vllm:tp=2", kRanks);
    const SessionMemory next(other, ends.rank());
    const bool changes = ends.rank() == Rank(1);
    if (changes) session.update(next.source_side(), next.target_side());
    expect_error(session.refit(6), Code::invalid_argument,
                 {"rank 1's source layout differs from rank 0's"});
    if (changes) session.update(memory.source_side(), memory.target_side());
    memory.source_bytes.fill(memory.source, 7);
    EXPECT_EQ(outcome(session.refit(7)), "");
    EXPECT_EQ(memory.wrong(session.target_version()), 0);
  });
}

TEST_P(SessionBegin, tells_calls_apart) {
  with_session(false, GetParam(), [](RankEnds& ends, SessionMemory& memory, Session& session) {
    if (ends.rank() == Rank(2)) {
      expect_error(memory.prepare(ends, {}), Code::invalid_argument,
                   {"rank 2 calls prepare() but rank 0 calls refit()"});
    } else {
      expect_error(session.refit(6), Code::invalid_argument,
                   {"rank 2 calls prepare() but rank 0 calls refit()"});
    }
  });
}

/// Expects an error on all other ranks if rank 1 sends `odd` as its record, and then `texts`.
void expect_corrupt(const BeginWords& odd, const std::string& texts, const std::string& why) {
  on_all([&](RankEnds& ends) {
    BeginRecords all;
    std::vector<BeginWords> buffer(static_cast<std::size_t>(ends.size()));
    if (ends.rank() == Rank(1)) {
      EXPECT_TRUE(ends.control->all_gather_into(
          std::as_bytes(std::span(&odd, 1)), std::as_writable_bytes(std::span(buffer)), patient()));
      if (!texts.empty()) {
        EXPECT_TRUE(ends.control->all_gather(std::as_bytes(std::span(texts)), patient()));
      }
    } else {
      expect_error(exchange_records({}, *ends.control, patient(), all, buffer), Code::corrupt,
                   {"the begin record from rank 1: " + why});
    }
  });
}

TEST(BeginRecords, refuse_what_no_rank_sends) {
  BeginWords good{};
  on_all([&](RankEnds& ends) {
    BeginRecords all;
    std::vector<BeginWords> buffer;
    EXPECT_EQ(outcome(exchange_records({}, *ends.control, patient(), all, buffer)), "");
    if (ends.rank() == Rank(0)) good = buffer[0];
  });
  const auto with = [&](std::size_t at, std::uint64_t value) {
    BeginWords words = good;
    words[at] = value;
    return words;
  };
  expect_corrupt(with(0, 7), "", "protocol");
  expect_corrupt(with(1, 3), "", "kind 3");
  expect_corrupt(with(9, 401), "", "texts of 401 and 0 bytes");
  expect_corrupt(with(10, ~std::uint64_t{0}), "", "texts of 0 and");
  expect_corrupt(with(9, 3), "four", "4 bytes of text, expected 3");
}

TEST(BeginRecords, bring_texts_where_any_rank_has_one) {
  on_all([](RankEnds& ends) {
    BeginRecords all;
    std::vector<BeginWords> buffer;
    for (const bool some : {false, true, false}) {
      BeginRecord mine;
      mine.version = ends.rank().value();
      if (some && ends.rank() == Rank(1)) mine.trouble = "no memory";
      if (some && ends.rank() == Rank(2)) mine.change = std::string(500, 'x');
      ASSERT_EQ(outcome(exchange_records(mine, *ends.control, patient(), all, buffer)), "");
      for (std::size_t r = 0; r < all.size(); ++r) {
        EXPECT_EQ(all[r].version, static_cast<std::int64_t>(r));
        EXPECT_EQ(all[r].trouble, some && r == 1 ? "no memory" : "");
        EXPECT_EQ(all[r].change, some && r == 2 ? std::string(400, 'x') : "");
      }
    }
  });
}

}  // namespace
}  // namespace reshard
