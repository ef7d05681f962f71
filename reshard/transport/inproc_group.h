// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "reshard/transport/inproc_bell.h"
#include "reshard/transport/inproc_mailbox.h"
#include "reshard/transport/inproc_meeting.h"

namespace reshard::inproc {

/// What the ranks of one group share. Lives as long as any end or event of the group.
struct Group {
  explicit Group(int num_ranks)
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
    for (Bell& bell : bells) bell.ring();
  }

  const int size;
  const std::uint64_t number = next_number();  ///< differs between the groups of a process.
  std::vector<std::atomic<bool>> closed;       ///< by rank: its transport.
  std::deque<Mailbox> mailboxes;               ///< by receiving rank.
  std::deque<Bell> bells;                      ///< by rank; rung when a step of the rank may go on.
  Meeting meeting;
  std::atomic<std::int64_t> reported{0};
};

class StepEvent;

/// What the transport and the events of one rank share. Used by that rank's thread alone.
struct Member {
  Member(std::shared_ptr<Group> whole, Rank me)
      : group(std::move(whole)), rank(me), wake(group->size) {}

  const std::shared_ptr<Group> group;
  const Rank rank;
  std::vector<StepEvent*> undone;
  bool closed = false;
  Wake wake;                  ///< empty between calls.
  std::vector<Slice> slices;  ///< scratch of work().
};

/// The event of one exchange on this group.
class StepEvent final : public Event {
 public:
  /// Posts the messages. @pre ranks are in range, the member is not closed
  StepEvent(std::shared_ptr<Member> member, std::span<const Send> sends,
            std::span<const Recv> recvs);
  ~StepEvent() override;

  Result<bool> test() override;
  Result<> wait(Deadline deadline) override;

  /// Completes the event with this error, unless it is done.
  void give_up(Error error);

 private:
  void post();
  bool settled();
  bool work();
  Withdrawn withdraw();
  void done(Result<> outcome);
  Error late(const Withdrawn& withdrawn) const;

  std::shared_ptr<Member> member_;
  Group& group_;
  Step step_;
  std::vector<Mailbox*> mailboxes_;  ///< those that hold messages of this step.
  std::size_t next_mailbox_ = 0;
  bool done_ = false;
  Result<> outcome_;
};

}  // namespace reshard::inproc
