// SPDX-License-Identifier: Apache-2.0
#include "reshard/gpu_transport/nccl/group_queue.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace reshard::nccl {

Result<GroupQueue> GroupQueue::make(std::unique_ptr<Communicator> communicator,
                                    std::shared_ptr<const cuda::Device> device,
                                    const GroupLimits& limits) {
  GroupQueue out(std::move(communicator), std::move(device));
  for (std::size_t i = 0; i < kInFlight; ++i)
    out.groups_.emplace_back(RESHARD_TRY(cuda::Event::make(out.device_)));
  RESHARD_TRY(out.reserve(limits.host_bytes));
  return out;
}

Result<> GroupQueue::reserve(std::size_t bytes) {
  if (reserved_ >= bytes) return {};
  auto pinned = RESHARD_TRY(cuda::Buffer::pinned(device_, static_cast<Index>(bytes)));
  auto staging = RESHARD_TRY(cuda::Buffer::on_device(device_, static_cast<Index>(bytes)));
  outgrown_.push_back(std::exchange(pinned_, std::move(pinned)));
  outgrown_.push_back(std::exchange(staging_, std::move(staging)));
  reserved_ = bytes;
  return {};
}

/// Calls f(half, where its bytes are in the buffers that stage) for the group's halves in host
/// memory in one direction: what is sent comes first.
template <class F>
void GroupQueue::for_staged(const Group& group, bool sending, F&& f) {
  std::size_t at = sending ? 0 : group.sent;
  for (const Half& h : group.halves)
    if (h.on_host && h.sending == sending) f(h, std::exchange(at, at + h.size));
}

/// True if the next group may be in flight beside those that are.
bool GroupQueue::may_give() const {
  if (is_starting_ || queue_.empty() || in_flight_ == kInFlight) return false;
  if (in_flight_ == 0) return true;
  if (groups_[first_].staged() > 0) return false;
  for (const Half& h : queue_) {
    if (!h.is_grouped_with(queue_.front())) break;
    if (h.on_host) return false;
  }
  return true;
}

Result<> GroupQueue::give() {
  Group& next = group(in_flight_);
  next.halves.clear();
  next.sent = next.received = 0;
  do {
    const Half& h = next.halves.emplace_back(queue_.front());
    if (h.on_host) (h.sending ? next.sent : next.received) += h.size;
    queue_.pop_front();
  } while (!queue_.empty() && queue_.front().is_grouped_with(next.halves.front()));
  ++in_flight_;
  is_starting_ = true;
  if (next.staged() > 0) RESHARD_TRY(reserve(next.staged()));
  operations_.clear();
  std::size_t sent = 0, received = next.sent;
  for (const Half& h : next.halves) {
    std::size_t& at = h.sending ? sent : received;
    std::byte* const bytes = h.on_host ? staging_.data() + std::exchange(at, at + h.size) : h.bytes;
    operations_.push_back({h.sending, h.peer.value(), bytes, h.size});
  }
  for_staged(next, true, [&](const Half& h, std::size_t at) {
    std::memcpy(pinned_.data() + at, h.bytes, h.size);
  });
  if (next.sent > 0)
    RESHARD_TRY(communicator_->stream().copy(staging_.data(), pinned_.data(),
                                             static_cast<Index>(next.sent)));
  return communicator_->give(operations_);
}

/// Once NCCL's work is on the stream: what comes after it.
Result<> GroupQueue::follow(const Group& group) {
  if (group.received > 0)
    RESHARD_TRY(communicator_->stream().copy(pinned_.data() + group.sent,
                                             staging_.data() + group.sent,
                                             static_cast<Index>(group.received)));
  return group.done.record(communicator_->stream());
}

void GroupQueue::complete(const Group& group) {
  for_staged(group, false, [&](const Half& h, std::size_t at) {
    std::memcpy(h.bytes, pinned_.data() + at, h.size);
  });
  completed_.insert(completed_.end(), group.halves.begin(), group.halves.end());
}

Result<bool> GroupQueue::advance() {
  // This also reports errors of groups under way, whose kernels would never end.
  const bool is_ready = in_flight_ > 0 && RESHARD_TRY(communicator_->is_ready());
  bool moved = false;
  if (is_starting_ && is_ready) {
    RESHARD_TRY(follow(group(in_flight_ - 1)));
    is_starting_ = false;
    moved = true;
  }
  const bool has_left = in_flight_ > 1 || (in_flight_ == 1 && !is_starting_);
  if (has_left && RESHARD_TRY(group(0).done.is_done())) {
    complete(group(0));
    first_ = (first_ + 1) % kInFlight;
    --in_flight_;
    moved = true;
  }
  if (may_give()) {
    RESHARD_TRY(give());
    moved = true;
  }
  return moved;
}

std::span<const Half> GroupQueue::oldest() const {
  return in_flight_ > 0 ? std::span<const Half>(groups_[first_].halves) : std::span<const Half>();
}

void GroupQueue::end(bool cleanly) {
  communicator_->end(cleanly && in_flight_ == 0);
  queue_.clear();
  in_flight_ = 0;
  is_starting_ = false;
}

}  // namespace reshard::nccl
