// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/inproc/collective_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "reshard/transport/checks.h"
#include "reshard/transport/deadline_wait.h"

namespace reshard::inproc {
namespace {

constexpr std::string_view kInto = "all_gather_into";

/// Lists the ranks for which `in` is true.
template <class Members, class Predicate>
std::string ranks_where(const Members& members, Predicate in) {
  return list_ranks(members.size(), [&](std::size_t r) { return in(members[r]); });
}

bool gone(const auto& member) { return member.closed && !member.here; }

}  // namespace

CollectiveState::CollectiveState(int size)
    : members_(static_cast<std::size_t>(size)), given_(members_.size()) {
  into_.fill(Gathered(members_.size()));
}

Result<> CollectiveState::may_meet(Rank rank, std::string_view what) const {
  if (members_[rank.index()].closed) {
    return fail(Code::invalid_argument,
                fmt::format("{} on rank {} after close()", what, rank.value()));
  }
  if (aborted()) return tl::unexpected(abort_error_);
  if (num_here_ != 0 && what != what_) {
    return fail(
        Code::invalid_argument,
        fmt::format(
            "rank {} calls {} while others are in {}; every rank must make collective calls "
            "in the same order",
            rank.value(), what, what_));
  }
  return {};
}

Result<std::shared_ptr<const CollectiveState::Gathered>> CollectiveState::meet(
    Rank rank, std::string_view what, std::span<const std::byte> mine, Deadline deadline) {
  std::unique_lock lock(mutex_);
  RESHARD_TRY(join(lock, rank, what, mine, deadline));
  return gathered_;
}

Result<> CollectiveState::meet_into(Rank rank, std::span<const std::byte> mine,
                                    std::span<std::byte> all, Deadline deadline) {
  if (all.size() % members_.size() != 0 || all.size() / members_.size() != mine.size())
    return tl::unexpected(wrong_output_size(all.size(), members_.size(), mine.size()));
  std::unique_lock lock(mutex_);
  const std::uint64_t number = RESHARD_TRY(join(lock, rank, kInto, mine, deadline));
  const Gathered& given = into_[number % 2];
  for (std::size_t r = 0; r < given.size(); ++r) {
    if (given[r].size() != mine.size())
      return tl::unexpected(unequal_part(r, given[r].size(), mine.size()));
    std::ranges::copy(given[r], all.begin() + static_cast<std::ptrdiff_t>(r * mine.size()));
  }
  return {};
}

/// Called when all ranks have arrived.
void CollectiveState::complete(std::string_view what) {
  gathered_ = nullptr;
  if (what == kInto) {
    std::swap(into_[done_ % 2], given_);
  } else if (what != kBarrier) {
    gathered_ = std::make_shared<const Gathered>(std::exchange(given_, Gathered(members_.size())));
  }
  for (Member& member : members_) member.here = false;
  num_here_ = 0;
  ++done_;
  changed_.notify_all();
}

Result<std::uint64_t> CollectiveState::join(std::unique_lock<std::mutex>& lock, Rank rank,
                                            std::string_view what, std::span<const std::byte> mine,
                                            Deadline deadline) {
  RESHARD_TRY(may_meet(rank, what));
  what_ = what;
  given_[rank.index()].assign(mine.begin(), mine.end());
  members_[rank.index()].here = true;
  const std::uint64_t before = done_;
  if (++num_here_ == members_.size()) {
    complete(what);
    return before;
  }
  const auto left = [](const Member& m) { return gone(m); };
  wait_until(changed_, lock, deadline,
             [&] { return done_ != before || aborted() || std::ranges::any_of(members_, left); });
  if (done_ != before) return before;
  if (aborted()) return tl::unexpected(abort_error_);
  const bool hopeless = std::ranges::any_of(members_, left);
  const std::string closed = ranks_where(members_, left);
  const std::string missing = ranks_where(members_, [](const Member& m) { return !m.here; });
  members_[rank.index()].here = false;
  --num_here_;
  if (hopeless)
    return fail(Code::aborted, fmt::format("{}: {} closed the control plane", what, closed));
  return fail(Code::deadline,
              fmt::format("{}: {} did not arrive before the deadline", what, missing));
}

Result<> CollectiveState::quiesce(Rank rank, Deadline deadline) {
  std::unique_lock lock(mutex_);
  Member& me = members_[rank.index()];
  if (me.closed) {
    return fail(Code::invalid_argument,
                fmt::format("quiesce on rank {} after close()", rank.value()));
  }
  ++me.quiesced;
  changed_.notify_all();
  const auto late = [&](const Member& m) { return !m.closed && m.quiesced < me.quiesced; };
  const bool all =
      wait_until(changed_, lock, deadline, [&] { return std::ranges::none_of(members_, late); });
  if (all) return {};
  const std::string missing = ranks_where(members_, late);
  --me.quiesced;
  return fail(
      Code::deadline,
      fmt::format("quiesce: {} did not arrive before the deadline and may still use this rank's "
                  "memory",
                  missing));
}

void CollectiveState::close(Rank rank) {
  const std::lock_guard lock(mutex_);
  members_[rank.index()].closed = true;
  changed_.notify_all();
}

std::vector<Rank> CollectiveState::closed() const {
  const std::lock_guard lock(mutex_);
  std::vector<Rank> out;
  for (std::size_t r = 0; r < members_.size(); ++r)
    if (members_[r].closed) out.push_back(Rank(static_cast<Rank::rep>(r)));
  return out;
}

bool CollectiveState::abort(Rank rank, std::string_view reason) {
  const std::lock_guard lock(mutex_);
  if (aborted()) return false;
  abort_error_ = {Code::aborted, fmt::format("rank {} aborted: {}", rank.value(), reason)};
  aborted_.store(true, std::memory_order_release);
  changed_.notify_all();
  return true;
}

Error CollectiveState::abort_error() const {
  const std::lock_guard lock(mutex_);
  return abort_error_;
}

}  // namespace reshard::inproc
