// SPDX-License-Identifier: Apache-2.0
// Ranks that one thread drives: it chooses what arrives next, and who looks.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "reshard/gpu_transport/nvshmem/model_group_testutil.h"

namespace reshard::nvshmem {

/// Staging whose slots have 4096 bytes.
inline std::size_t smallest_staging(int pes) {
  const auto n = static_cast<std::size_t>(pes);
  return (n * sizeof(PeerWords) + 511) / 512 * 512 + n * 2 * kSlots * 4096;
}

struct PlannedMessage {
  int from = 0, to = 0;
  std::uint64_t id = 0;
  std::size_t bytes = 0;
};

/// Chooses the i-th of n.
using Choose = std::function<std::size_t(std::size_t n)>;

class ByHand {
 public:
  explicit ByHand(NvshmemModel::Options options)
      : group_(by_hand(options), smallest_staging(options.pes)), ranks_(group_.make_ranks()) {}
  ~ByHand() { leave(); }

  NvshmemModel& model() { return group_.model(); }
  int size() const { return static_cast<int>(ranks_.size()); }
  RankEnds& ends(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }

  /// Posts one exchange on each rank.
  void begin(const std::vector<PlannedMessage>& messages) {
    events_.clear();
    events_.resize(ranks_.size());
    rooms_.clear();
    payloads_.clear();
    for (int rank = 0; rank < size(); ++rank) {
      std::vector<Send> sends;
      std::vector<Recv> recvs;
      for (const PlannedMessage& m : messages) {
        const MessageId id{m.id};
        if (m.from == rank) {
          payloads_.push_back(pattern(Rank{m.from}, Rank{m.to}, id, m.bytes));
          sends.push_back({Rank{m.to}, id, payloads_.back()});
        }
        if (m.to == rank) {
          rooms_.emplace_back(rank, Room(Rank{m.from}, id, m.bytes));
          recvs.push_back(rooms_.back().second.recv());
        }
      }
      const NvshmemModel::As as(model(), rank);
      auto event = ends(rank).transport->exchange(sends, recvs);
      ASSERT_TRUE(event) << outcome(event);
      events_[static_cast<std::size_t>(rank)] = std::move(*event);
    }
  }

  std::unique_ptr<Event>& event(int rank) { return events_[static_cast<std::size_t>(rank)]; }

  /// Does on this rank what can be done without a further arrival. The result of its event.
  Result<bool> settle(int rank) {
    // Emulated events are done when they are asked for a second time; an arrival takes two looks.
    constexpr int kLooks = 8;
    const NvshmemModel::As as(model(), rank);
    Result<bool> done = true;
    for (int i = 0; i < kLooks && event(rank) != nullptr; ++i) done = event(rank)->test();
    return done;
  }
  bool settle_all() {
    bool done = true;
    for (int rank = 0; rank < size(); ++rank) done = settle(rank).value_or(true) && done;
    return done;
  }

  /// Runs until all events are done. After each arrival, those ranks look whose bits choose(2 to
  /// the power of the number of ranks) has, or all of them.
  void run(const Choose& choose, bool choose_who_looks) {
    while (!settle_all_or_pending()) {
      const std::size_t n = model().num_deliverable();
      model().deliver(n == 1 ? 0 : choose(n));
      const std::size_t everyone = (std::size_t{1} << size()) - 1;
      const std::size_t who = choose_who_looks ? choose(everyone + 1) : everyone;
      for (int rank = 0; rank < size(); ++rank) {
        const Result<bool> looked = (who >> rank & 1) != 0 ? settle(rank) : false;
        EXPECT_TRUE(looked) << outcome(looked);
      }
      if (testing::Test::HasFailure()) return;
    }
    for (const auto& [to, room] : rooms_) EXPECT_TRUE(room.holds_pattern(Rank{to}));
    EXPECT_EQ(model().num_unmet_waits(), 0) << "a stream would wait for a peer";
  }

  std::vector<std::pair<int, Room>>& rooms() { return rooms_; }

  /// Ends the group.
  void leave() {
    for (int rank = 0; rank < static_cast<int>(events_.size()); ++rank) {
      const NvshmemModel::As as(model(), rank);
      event(rank).reset();
    }
    for (int rank = 0; rank < size(); ++rank) {
      const NvshmemModel::As as(model(), rank);
      ends(rank).transport.reset();
    }
    ranks_.clear();
  }
  /// A new group of the same PEs.
  void enter() { ranks_ = group_.make_ranks(); }

 private:
  static NvshmemModel::Options by_hand(NvshmemModel::Options options) {
    options.by_hand = true;
    return options;
  }

  /// True if all is done. False if something can arrive.
  bool settle_all_or_pending() {
    if (model().num_deliverable() != 0) return false;
    constexpr int kPatience = 4;  // Ranks may go on because of what others do meanwhile.
    bool done = settle_all();
    for (int i = 0; i < kPatience && !done && model().num_deliverable() == 0; ++i)
      done = settle_all();
    if (!done && model().num_deliverable() == 0) {
      ADD_FAILURE() << "nothing is on its way, and messages are not complete";
      return true;
    }
    return done && model().num_deliverable() == 0;
  }

  ModelGroup group_;
  std::vector<RankEnds> ranks_;
  std::deque<Bytes> payloads_;
  std::vector<std::pair<int, Room>> rooms_;
  std::vector<std::unique_ptr<Event>> events_;
};

/// All sequences of choices, one after another, whose sum is at most `most`: how far they are, in
/// all, from always choosing the first.
class Choices {
 public:
  explicit Choices(std::size_t most) : most_(most) {}

  std::size_t choose(std::size_t n) {
    if (at_ == trail_.size()) trail_.push_back({0, n});
    EXPECT_EQ(trail_[at_].of, n) << "the run differs from the one before, for the same choices";
    const std::size_t chosen = trail_[at_++].chosen;
    sum_ += chosen;
    return chosen;
  }

  /// Begins the next sequence. False after the last.
  bool next() {
    ++runs_;
    while (!trail_.empty()) {
      Choice& last = trail_.back();
      if (last.chosen + 1 < last.of && sum_ < most_) {
        ++last.chosen;
        break;
      }
      sum_ -= last.chosen;
      trail_.pop_back();
    }
    at_ = 0;
    sum_ = 0;
    return !trail_.empty();
  }
  std::size_t runs() const { return runs_; }

 private:
  struct Choice {
    std::size_t chosen = 0, of = 0;
  };
  const std::size_t most_;
  std::vector<Choice> trail_;
  std::size_t at_ = 0, sum_ = 0, runs_ = 0;
};

}  // namespace reshard::nvshmem
