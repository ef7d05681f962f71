// SPDX-License-Identifier: Apache-2.0
// Protects: in whatever order ranks call, leave and die, each call is answered once and as early as
// possible.
#include "reshard/transport/tcp/coordinator_state.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace reshard::tcp {
namespace {

constexpr int kRanks = 3;

/// The state of each rank, from the frames that it received.
struct Seen {
  enum class In { nothing, meet, quiesce } in = In::nothing;
  bool gone = false, aborted = false;
  std::uint64_t id = 0;
  int quiesced = 0;
  std::vector<std::uint64_t> lost;
  std::string last_error;
};

class ProcessGroup {
 public:
  ProcessGroup()
      : coordinator_(kRanks, [this](Rank to, const Frame& f, FrameBody body) {
          receive(to, encode(f, body));
        }) {
    for (std::uint64_t r = 0; r < kRanks; ++r) {
      Frame refusal;
      EXPECT_TRUE(
          coordinator_.seat({Kind::join, 0, r, kRanks, "", std::vector<std::byte>(32)}, refusal));
      coordinator_.start_if_complete();
    }
    EXPECT_TRUE(coordinator_.started());
  }

  void call(std::size_t r, Kind kind, const std::string& what) {
    Seen& me = seen_[r];
    me.in = kind == Kind::meet ? Seen::In::meet : Seen::In::quiesce;
    me.quiesced += kind == Kind::quiesce;
    EXPECT_TRUE(coordinator_.on_frame(rank(r), {kind, ++me.id, 0, 0, what, {}}));
    check();
  }
  void leave(std::size_t r) {
    seen_[r].quiesced -= seen_[r].in == Seen::In::quiesce;
    EXPECT_TRUE(coordinator_.on_frame(rank(r), {Kind::leave, seen_[r].id, 0, 0, "", {}}));
    EXPECT_EQ(seen_[r].in, Seen::In::nothing) << "who leaves is answered";
    check();
  }
  void go(std::size_t r, bool dies) {
    seen_[r].gone = true;
    if (dies) {
      coordinator_.on_lost(rank(r));
    } else {
      EXPECT_FALSE(coordinator_.on_frame(rank(r), {Kind::bye, 0, 0, 0, "", {}}));
    }
    check();
  }
  void abort(std::size_t r) {
    EXPECT_TRUE(coordinator_.on_frame(rank(r), {Kind::abort, 0, 0, 0, "enough", {}}));
    check();
  }
  const Seen& at(std::size_t r) const { return seen_[r]; }
  bool finished() const { return coordinator_.finished(); }

 private:
  static Rank rank(std::size_t r) { return Rank(static_cast<Rank::rep>(r)); }

  void receive(Rank to, const EncodedFrame& encoded) {
    auto bytes = encoded.head;
    if (encoded.body) bytes.insert(bytes.end(), encoded.body->begin(), encoded.body->end());
    const auto frame = parse_frame(bytes);
    ASSERT_TRUE(frame);
    Seen& it = seen_[to.index()];
    ASSERT_FALSE(it.gone) << "a frame to who is gone";
    if (frame->kind == Kind::lost) it.lost.push_back(frame->a);
    if (frame->kind == Kind::aborted) {
      EXPECT_FALSE(it.aborted) << "one abort counts";
      it.aborted = true;
      if (it.in == Seen::In::meet) it.in = Seen::In::nothing;
    }
    if ((frame->kind == Kind::done || frame->kind == Kind::failed) && frame->id != 0) {
      EXPECT_NE(it.in, Seen::In::nothing) << "an answer to no question";
      EXPECT_EQ(frame->id, it.id);
      it.in = Seen::In::nothing;
      it.last_error = frame->kind == Kind::failed ? frame->text : "";
    }
  }

  /// Checks that no rank waits for something impossible or complete.
  void check() const {
    const auto alive = [](const Seen& s) { return !s.gone; };
    const auto meets = [](const Seen& s) { return s.in == Seen::In::meet; };
    const bool aborted = std::ranges::any_of(seen_, &Seen::aborted);
    if (!aborted && std::ranges::any_of(seen_, [&](auto& s) { return alive(s) && meets(s); })) {
      EXPECT_FALSE(std::ranges::all_of(seen_, meets)) << "all are there";
    }
    int least = 1 << 30;
    for (const Seen& s : seen_)
      if (alive(s)) least = std::min(least, s.quiesced);
    for (const Seen& s : seen_) {
      if (alive(s) && s.in == Seen::In::quiesce) {
        EXPECT_GT(s.quiesced, least) << "all are quiet";
      }
    }
  }

  std::vector<Seen> seen_ = std::vector<Seen>(kRanks);
  CoordinatorState coordinator_;
};

RC_GTEST_PROP(CoordinatorState, answers_each_call_once_and_in_time, ()) {
  ProcessGroup group;
  const int steps = *rc::gen::inRange(1, 40);
  for (int i = 0; i < steps; ++i) {
    const auto r = *rc::gen::inRange<std::size_t>(0, kRanks);
    const Seen& me = group.at(r);
    if (me.gone) continue;
    const int what = *rc::gen::inRange(0, 12);
    if (me.in != Seen::In::nothing) {
      if (what < 4) group.leave(r);
    } else if (what < 5 && !me.aborted) {
      group.call(r, Kind::meet, what < 4 ? "barrier" : "all_gather");
    } else if (what < 10) {
      group.call(r, Kind::quiesce, "");
    } else if (what == 10) {
      group.go(r, *rc::gen::inRange(0, 2) == 0);
    } else if (*rc::gen::inRange(0, 4) == 0) {
      group.abort(r);
    }
  }
  RC_ASSERT(!testing::Test::HasFailure());
}

TEST(CoordinatorState, a_collective_ends_when_someone_it_waits_for_leaves) {
  ProcessGroup group;
  group.call(0, Kind::meet, "barrier");
  group.go(2, false);
  EXPECT_EQ(group.at(0).in, Seen::In::nothing);
  EXPECT_EQ(group.at(0).last_error, "barrier: rank 2 closed the control plane");
  EXPECT_EQ(group.at(0).lost, std::vector<std::uint64_t>{2});
  group.call(1, Kind::meet, "all_gather");
  EXPECT_EQ(group.at(1).last_error, "all_gather: rank 2 closed the control plane");
}

TEST(CoordinatorState, a_rank_that_was_there_may_leave_before_the_others_come) {
  ProcessGroup group;
  group.call(2, Kind::meet, "barrier");
  group.go(2, false);
  group.call(0, Kind::meet, "barrier");
  group.call(1, Kind::meet, "barrier");
  EXPECT_EQ(group.at(0).in, Seen::In::nothing);
  EXPECT_EQ(group.at(0).last_error, "");
}

TEST(CoordinatorState, a_rank_that_gave_up_may_come_again) {
  ProcessGroup group;
  group.call(0, Kind::meet, "barrier");
  group.leave(0);
  EXPECT_EQ(group.at(0).last_error, "barrier: ranks 1, 2 did not arrive before the deadline");
  for (const std::size_t r : {1UL, 0UL, 2UL}) group.call(r, Kind::meet, "barrier");
  for (std::size_t r = 0; r < kRanks; ++r) {
    EXPECT_EQ(group.at(r).in, Seen::In::nothing);
    EXPECT_EQ(group.at(r).last_error, "");
  }
}

TEST(CoordinatorState, is_finished_when_all_are_gone) {
  ProcessGroup group;
  group.go(0, false);
  group.go(1, true);
  EXPECT_FALSE(group.finished());
  group.go(2, false);
  EXPECT_TRUE(group.finished());
}

}  // namespace
}  // namespace reshard::tcp
