// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/inproc/group.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace reshard::inproc {
namespace {

/// Most small messages that one thread takes at a time; with kGrain, bounds the work between two
/// checks.
constexpr std::size_t kSlices = 256;
/// Initial capacity of a step in messages, so that it rarely grows.
constexpr std::size_t kInitialCapacity = 32;
/// Most steps that are kept for reuse.
constexpr std::size_t kSpareSteps = 64;

}  // namespace

Member::Member(std::shared_ptr<SharedGroup> shared, Rank me)
    : group(std::move(shared)), rank(me), wake(group->size) {}
Member::~Member() = default;

LentStep::LentStep(std::shared_ptr<Member> member, std::span<const Send> sends,
                   std::span<const Recv> recvs)
    : member_(std::move(member)) {
  auto& spare = member_->spare;
  if (spare.empty()) spare.push_back(std::make_unique<MemberStep>(*member_));
  step_ = std::move(spare.back());
  spare.pop_back();
  step_->begin(sends, recvs);
}

LentStep::~LentStep() {
  if (!step_->is_done())
    step_->abandon({Code::aborted, "the event was destroyed before it was done"});
  if (member_->spare.size() < kSpareSteps) member_->spare.push_back(std::move(step_));
}

void MemberStep::begin(std::span<const Send> sends, std::span<const Recv> recvs) {
  step_.rank = member_.rank;
  step_.sends.reserve(kInitialCapacity);
  step_.recvs.reserve(kInitialCapacity);
  step_.sends.assign(sends.begin(), sends.end());
  step_.recvs.assign(recvs.begin(), recvs.end());
  step_.clear_error();
  if (!std::ranges::is_sorted(step_.sends, {}, &Send::to))
    std::ranges::sort(step_.sends, {}, &Send::to);
  mailboxes_.clear();
  next_mailbox_ = 0;
  done_ = false;
  outcome_ = {};
  member_.undone.push_back(this);
  post();
}

void MemberStep::post() {
  std::int64_t total = 0;
  for (const Send& send : step_.sends) total += grains(send.bytes.size());
  for (const Recv& recv : step_.recvs) total += grains(recv.bytes.size());
  step_.left.store(total, std::memory_order_relaxed);

  const Rank me = step_.rank;
  if (!step_.recvs.empty()) {
    mailboxes_.push_back(&group_.mailboxes[me.index()]);
    mailboxes_.back()->post(std::span<const Recv>(step_.recvs), step_, member_.wake);
  }
  for (auto first = step_.sends.begin(); first != step_.sends.end();) {
    const auto last = std::ranges::upper_bound(first, step_.sends.end(), first->to, {}, &Send::to);
    Mailbox* mailbox = &group_.mailboxes[first->to.index()];
    if (first->to != me || mailboxes_.empty()) mailboxes_.push_back(mailbox);
    mailbox->post(std::span<const Send>(first, last), step_, member_.wake);
    first = last;
  }
  member_.wake.notify(group_.event_counts);
}

bool MemberStep::settled() {
  if (done_) return true;
  auto error = step_.error();
  // A peer may have withdrawn its messages because of an abort: report the abort then.
  if ((!error || error->code == Code::aborted) && group_.collectives.aborted())
    error = group_.collectives.abort_error();
  if (error) {
    abandon(std::move(*error));
  } else if (step_.left.load(std::memory_order_acquire) == 0) {
    done({});
  }
  return done_;
}

bool MemberStep::work() {
  member_.slices.resize(kSlices);
  for (std::size_t i = 0; i < mailboxes_.size(); ++i) {
    Mailbox& mailbox = *mailboxes_[next_mailbox_];
    const std::size_t n = mailbox.has_work() ? mailbox.take(member_.slices) : 0;
    if (n == 0) {
      next_mailbox_ = (next_mailbox_ + 1) % mailboxes_.size();
      continue;
    }
    const std::span<const Slice> mine = std::span(member_.slices).first(n);
    copy(mine);
    finish(mine, member_.wake);
    member_.wake.notify(group_.event_counts);
    return true;
  }
  return false;
}

Result<bool> MemberStep::test() {
  if (!settled() && work()) (void)settled();
  if (!done_) return false;
  if (!outcome_) return tl::unexpected(outcome_.error());
  return true;
}

Result<> MemberStep::wait(Deadline deadline) {
  const EventCount& event_count = group_.event_counts[step_.rank.index()];
  while (true) {
    const std::uint64_t seen = event_count.count();
    if (settled()) return outcome_;
    if (deadline.expired()) {
      const Withdrawn withdrawn = withdraw();
      done(tl::unexpected(deadline_error(withdrawn)));
      return outcome_;
    }
    if (!work()) group_.event_counts[step_.rank.index()].wait(seen, deadline);
  }
}

void MemberStep::abandon(Error error) {
  if (done_) return;
  withdraw();
  done(tl::unexpected(std::move(error)));
}

Withdrawn MemberStep::withdraw() {
  Withdrawn all;
  for (Mailbox* mailbox : mailboxes_) {
    Withdrawn some = mailbox->withdraw(step_, member_.wake);
    all.messages += some.messages;
    if (!all.unmatched) all.unmatched = std::move(some.unmatched);
  }
  member_.wake.notify(group_.event_counts);
  // Other threads are copying what is left now, a grain each, so this needs no deadline.
  EventCount& event_count = group_.event_counts[step_.rank.index()];
  while (true) {
    const std::uint64_t seen = event_count.count();
    if (step_.left.load(std::memory_order_acquire) == 0) return all;
    event_count.wait(seen, Deadline::never());
  }
}

void MemberStep::done(Result<> outcome) {
  outcome_ = std::move(outcome);
  done_ = true;
  std::erase(member_.undone, this);
}

Error MemberStep::deadline_error(const Withdrawn& withdrawn) const {
  const std::size_t total = step_.sends.size() + step_.recvs.size();
  return {Code::deadline,
          fmt::format("deadline passed on rank {} with {} of {} messages missing: {}",
                      step_.rank.value(), withdrawn.messages, total,
                      withdrawn.unmatched.value_or("all of them were being copied"))};
}

}  // namespace reshard::inproc
