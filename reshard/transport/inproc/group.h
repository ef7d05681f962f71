// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "reshard/base/containers/pooled.h"
#include "reshard/transport/inproc/collective_state.h"
#include "reshard/transport/inproc/event_count.h"
#include "reshard/transport/inproc/mailbox.h"

namespace reshard::inproc {

/// The state that the ranks of one group share. Lives as long as any transport, control plane or
/// event of the group.
struct SharedGroup {
  explicit SharedGroup(int num_ranks)
      : size(num_ranks),
        closed(static_cast<std::size_t>(num_ranks)),
        event_counts(static_cast<std::size_t>(num_ranks)),
        collectives(num_ranks) {
    for (int r = 0; r < num_ranks; ++r) mailboxes.emplace_back(Rank{r}, closed);
  }

  static std::uint64_t next_number() {
    static std::atomic<std::uint64_t> last{0};
    return mix64(++last);
  }

  void notify_all_ranks() {
    for (EventCount& event_count : event_counts) event_count.notify();
  }

  const int size;
  const std::uint64_t number = next_number();  ///< differs between the groups of a process.
  std::vector<std::atomic<bool>> closed;       ///< by rank: whether its transport is closed.
  std::deque<Mailbox> mailboxes;               ///< by receiving rank.
  std::deque<EventCount> event_counts;         ///< by rank; notified when one of its steps may
                                               ///< proceed.
  CollectiveState collectives;
  std::atomic<std::int64_t> reported{0};
};

class MemberStep;

/// The state that the transport and the events of one rank share. Used by that rank's thread only.
struct Member {
  Member(std::shared_ptr<SharedGroup> shared, Rank me);
  ~Member();

  const std::shared_ptr<SharedGroup> group;
  const Rank rank;
  std::vector<MemberStep*> undone;
  std::vector<std::unique_ptr<MemberStep>> spare;  ///< done, for reuse.
  bool closed = false;
  Wake wake;                  ///< empty between calls.
  std::vector<Slice> slices;  ///< scratch memory of work().
};

/// One exchange of a rank; reusable.
class MemberStep {
 public:
  /// `member` must outlive it.
  explicit MemberStep(Member& member) : member_(member), group_(*member.group) {}

  /// Posts the messages. @pre ranks are valid, the member is not closed, and is_done()
  void begin(std::span<const Send> sends, std::span<const Recv> recvs);
  Result<bool> test();
  Result<> wait(Deadline deadline);
  bool is_done() const { return done_; }
  /// Completes it with this error unless it is done.
  void abandon(Error error);

 private:
  void post();
  bool settled();
  bool work();
  Withdrawn withdraw();
  void done(Result<> outcome);
  Error deadline_error(const Withdrawn& withdrawn) const;

  Member& member_;
  SharedGroup& group_;
  Step step_;
  std::vector<Mailbox*> mailboxes_;  ///< those that have messages of this step.
  std::size_t next_mailbox_ = 0;
  bool done_ = true;
  Result<> outcome_;
};

/// The event of one exchange. Borrows a step from its member.
class LentStep final : public Event, public Pooled<LentStep> {
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
