// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "reshard/base/keeps_memory.h"
#include "reshard/transport/inproc/collective_state.h"
#include "reshard/transport/inproc/event_count.h"
#include "reshard/transport/inproc/mailbox.h"

namespace reshard::inproc {

/// What the ranks of one group share. Lives as long as any end or event of the group.
struct SharedGroup {
  explicit SharedGroup(int num_ranks)
      : size(num_ranks),
        closed(static_cast<std::size_t>(num_ranks)),
        bells(static_cast<std::size_t>(num_ranks)),
        meeting(num_ranks) {
    for (int r = 0; r < num_ranks; ++r) mailboxes.emplace_back(Rank{r}, closed);
  }

  static std::uint64_t next_number() {
    static std::atomic<std::uint64_t> last{0};
    return mix64(++last);
  }

  void ring_all() {
    for (EventCount& bell : bells) bell.ring();
  }

  const int size;
  const std::uint64_t number = next_number();  ///< differs between the groups of a process.
  std::vector<std::atomic<bool>> closed;       ///< by rank: its transport.
  std::deque<Mailbox> mailboxes;               ///< by receiving rank.
  std::deque<EventCount> bells;                ///< by rank; rung when a step of the rank may go on.
  CollectiveState meeting;
  std::atomic<std::int64_t> reported{0};
};

class MemberStep;

/// What the transport and the events of one rank share. Used by that rank's thread alone.
struct Member {
  Member(std::shared_ptr<SharedGroup> whole, Rank me);
  ~Member();

  const std::shared_ptr<SharedGroup> group;
  const Rank rank;
  std::vector<MemberStep*> undone;
  std::vector<std::unique_ptr<MemberStep>> spare;  ///< done, to be used again.
  bool closed = false;
  Wake wake;                  ///< empty between calls.
  std::vector<Slice> slices;  ///< scratch of work().
};

/// One exchange of a rank, used again and again.
class MemberStep {
 public:
  /// @pre member outlives it
  explicit MemberStep(Member& member) : member_(member), group_(*member.group) {}

  /// Posts the messages. @pre ranks are in range, the member is not closed, what was begun before
  /// is done
  void begin(std::span<const Send> sends, std::span<const Recv> recvs);
  Result<bool> test();
  Result<> wait(Deadline deadline);
  bool is_done() const { return done_; }
  /// Completes it with this error, unless it is done.
  void give_up(Error error);

 private:
  void post();
  bool settled();
  bool work();
  Withdrawn withdraw();
  void done(Result<> outcome);
  Error late(const Withdrawn& withdrawn) const;

  Member& member_;
  SharedGroup& group_;
  Step step_;
  std::vector<Mailbox*> mailboxes_;  ///< those that hold messages of this step.
  std::size_t next_mailbox_ = 0;
  bool done_ = true;
  Result<> outcome_;
};

/// The event of one exchange: a step of its member, lent.
class LentStep final : public Event, public KeepsMemory<LentStep> {
 public:
  LentStep(std::shared_ptr<Member> member, std::span<const Send> sends,
           std::span<const Recv> recvs);
  ~LentStep() override;

  Result<bool> test() override { return step_->test(); }
  Result<> wait(Deadline deadline) override { return step_->wait(deadline); }

 private:
  const std::shared_ptr<Member> member_;
  std::unique_ptr<MemberStep> step_;
};

}  // namespace reshard::inproc
