// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/inproc/mailbox.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace reshard::inproc {
namespace {

Error closed_error(Rank rank) {
  return {Code::aborted,
          fmt::format("rank {} closed its transport while messages with it were outstanding",
                      rank.value())};
}

}  // namespace

std::string Mailbox::describe(Key key) const {
  return fmt::format("message {} from rank {} to rank {}", key.id.value(), key.from.value(),
                     owner_.value());
}

void Mailbox::post(std::span<const Send> sends, Step& step, Wake& wake) {
  const std::lock_guard lock(mutex_);
  if (closed_[owner_.index()].load(std::memory_order_acquire)) step.fail(closed_error(owner_));
  for (const Send& send : sends) {
    // Dropping const is safe: a half of side send is only ever the source of a copy.
    auto* data = const_cast<std::byte*>(send.bytes.data());
    meet({step.rank, send.id}, {Side::send, data, send.bytes.size(), &step, step.rank}, wake);
  }
  matched_.store(jobs_.size(), std::memory_order_release);
}

void Mailbox::post(std::span<const Recv> recvs, Step& step, Wake& wake) {
  const std::lock_guard lock(mutex_);
  for (const Recv& recv : recvs) {
    const bool closed = closed_[recv.from.index()].load(std::memory_order_acquire);
    if (closed) step.fail(closed_error(recv.from));
    meet({recv.from, recv.id}, {Side::recv, recv.bytes.data(), recv.bytes.size(), &step, recv.from},
         wake);
  }
  matched_.store(jobs_.size(), std::memory_order_release);
}

void Mailbox::meet(Key key, Half mine, Wake& wake) {
  const messages::MessageTable::Entry* found = table_.find(key.from, key.id);
  if (found == nullptr) {
    const auto index = messages::Slab<Half>::index(waiting_.add(mine));
    table_.insert({key.id, key.from, index, messages::MessageTable::Kind::unexpected});
    return;
  }
  const std::uint32_t index = found->index;
  const Half other = waiting_[index];
  if (other.side == mine.side) {
    mine.step->fail({Code::invalid_argument,
                     fmt::format("{} is {} twice; an id may be used again once its event is done",
                                 describe(key), mine.side == Side::send ? "sent" : "received")});
    drop(*mine.step, mine.bytes, wake);
    return;
  }
  table_.erase(key.from, key.id);
  waiting_.remove(index);
  const Half& from = mine.side == Side::send ? mine : other;
  const Half& to = mine.side == Side::send ? other : mine;
  if (from.bytes == to.bytes) {
    jobs_.push_back({from.data, to.data, from.bytes, from.step, to.step});
    wake.add(other.step->rank);
    return;
  }
  const Error error{Code::invalid_argument,
                    fmt::format("{}: the sender has {} bytes, the receiver expects {}; both must "
                                "give the same size",
                                describe(key), from.bytes, to.bytes)};
  for (const Half& half : {from, to}) {
    half.step->fail(error);
    drop(*half.step, half.bytes, wake);
  }
}

void Mailbox::drop(Step& step, std::size_t bytes, Wake& wake) {
  wake.add(step.rank);
  (void)step.count_down(grains(bytes));
}

std::size_t Mailbox::take(std::span<Slice> out) {
  const std::lock_guard lock(mutex_);
  std::size_t taken = 0, bytes = 0;
  while (taken < out.size() && bytes < kGrain && !jobs_.empty()) {
    Slice& job = jobs_.front();
    const std::size_t part = std::min(job.bytes, kGrain);
    out[taken++] = {job.source, job.target, part, job.sender, job.receiver};
    bytes += part;
    if (part == job.bytes) {
      jobs_.pop_front();
    } else {
      job.source += part;
      job.target += part;
      job.bytes -= part;
    }
  }
  matched_.store(jobs_.size(), std::memory_order_release);
  return taken;
}

Withdrawn Mailbox::withdraw(Step& step, Wake& wake) {
  const std::lock_guard lock(mutex_);
  Withdrawn out;
  const auto [first, last] = std::ranges::equal_range(step.sends, owner_, {}, &Send::to);
  for (const Send& send : std::span(first, last)) {
    if (!withdraw_half({step.rank, send.id}, Side::send, step, wake) || out.messages++ != 0)
      continue;
    out.unmatched = fmt::format("message {} to rank {} ({} bytes) was not received there",
                                send.id.value(), owner_.value(), send.bytes.size());
  }
  for (const Recv& recv : step.rank == owner_ ? std::span(step.recvs) : std::span<Recv>()) {
    if (!withdraw_half({recv.from, recv.id}, Side::recv, step, wake) || out.messages++ != 0)
      continue;
    out.unmatched = fmt::format("message {} from rank {} ({} bytes) was not sent there",
                                recv.id.value(), recv.from.value(), recv.bytes.size());
  }
  out.messages += static_cast<std::int64_t>(
      jobs_.erase_if([&](const Slice& job) { return withdraw_job(job, step, wake); }));
  matched_.store(jobs_.size(), std::memory_order_release);
  return out;
}

bool Mailbox::withdraw_job(const Slice& job, Step& step, Wake& wake) {
  if (job.sender != &step && job.receiver != &step) return false;
  Step& other = job.sender == &step ? *job.receiver : *job.sender;
  if (&other != &step) {
    other.fail(
        {Code::aborted,
         fmt::format("rank {} gave up a message from rank {} to rank {} before it was complete",
                     step.rank.value(), job.sender->rank.value(), owner_.value())});
  }
  drop(step, job.bytes, wake);
  drop(other, job.bytes, wake);
  return true;
}

bool Mailbox::withdraw_half(Key key, Side side, Step& step, Wake& wake) {
  const messages::MessageTable::Entry* found = table_.find(key.from, key.id);
  if (found == nullptr) return false;
  const std::uint32_t index = found->index;
  const Half half = waiting_[index];
  if (half.step != &step || half.side != side) return false;
  drop(step, half.bytes, wake);
  table_.erase(key.from, key.id);
  waiting_.remove(index);
  return true;
}

void Mailbox::fail_messages_of(Rank rank, Wake& wake) {
  const std::lock_guard lock(mutex_);
  waiting_.for_each([&](std::uint32_t, const Half& half) {
    const Rank peer = half.side == Side::send ? owner_ : half.from;
    if (peer != rank) return;
    half.step->fail(closed_error(rank));
    wake.add(half.step->rank);
  });
}

void copy(std::span<const Slice> slices) {
  for (const Slice& slice : slices)
    if (slice.bytes != 0) std::memcpy(slice.target, slice.source, slice.bytes);
}

void finish(std::span<const Slice> slices, Wake& wake) {
  for (auto run = slices.begin(); run != slices.end();) {
    const auto end = std::find_if(run, slices.end(), [&](const Slice& s) {
      return s.sender != run->sender || s.receiver != run->receiver;
    });
    const std::int64_t n = end - run;
    const Rank from = run->sender->rank, to = run->receiver->rank;
    if (run->sender->count_down(n)) wake.add(from);
    if (run->receiver->count_down(n)) wake.add(to);
    run = end;
  }
}

}  // namespace reshard::inproc
