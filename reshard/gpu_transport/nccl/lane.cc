// SPDX-License-Identifier: Apache-2.0
#include "reshard/gpu_transport/nccl/lane.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace reshard::nccl {

Result<MessageLane> MessageLane::make(std::unique_ptr<Communicator> communicator,
                                      std::shared_ptr<const cuda::Device> device, int size,
                                      const GroupLimits& limits) {
  auto done = RESHARD_TRY(cuda::Event::make(device));
  MessageLane out(std::move(communicator), std::move(done), size, limits);
  const auto bytes = static_cast<Index>(limits.host_bytes);
  // Now: later, a kernel of NCCL that waits for a peer could hold up the driver.
  out.pinned_ = RESHARD_TRY(cuda::Buffer::pinned(device, bytes));
  out.staging_ = RESHARD_TRY(cuda::Buffer::on_device(std::move(device), bytes));
  const auto most = static_cast<std::size_t>(2 * limits.messages);
  out.group_.reserve(most);
  out.operations_.reserve(most);
  return out;
}

/// Calls f(half, where its bytes are in the buffers that stage) for the group's halves in host
/// memory in one direction: what is sent comes first.
template <class F>
void MessageLane::for_staged(bool sending, F&& f) const {
  std::size_t at = sending ? 0 : sent_bytes_;
  for (const Half& h : group_)
    if (h.on_host && h.sending == sending) f(h, std::exchange(at, at + h.size));
}

Result<> MessageLane::give() {
  const auto n = static_cast<std::ptrdiff_t>(next_group(queue_, connected_, limits_));
  group_.assign(queue_.begin(), queue_.begin() + n);
  queue_.erase(queue_.begin(), queue_.begin() + n);
  sent_bytes_ = received_bytes_ = 0;
  for (const Half& h : group_)
    if (h.on_host) (h.sending ? sent_bytes_ : received_bytes_) += h.size;
  operations_.clear();
  std::size_t sent = 0, received = sent_bytes_;
  for (const Half& h : group_) {
    std::size_t& at = h.sending ? sent : received;
    std::byte* const bytes = h.on_host ? staging_.data() + std::exchange(at, at + h.size) : h.bytes;
    operations_.push_back({h.sending, h.peer.value(), bytes, h.size});
    connected_[h.peer.index()] = true;
  }
  for_staged(true, [&](const Half& h, std::size_t at) {
    std::memcpy(pinned_.data() + at, h.bytes, h.size);
  });
  if (sent_bytes_ > 0)
    RESHARD_TRY(communicator_->stream().copy(staging_.data(), pinned_.data(),
                                             static_cast<Index>(sent_bytes_)));
  return communicator_->give(operations_);
}

/// Once NCCL's work is on the stream: what comes after it.
Result<> MessageLane::follow() {
  if (received_bytes_ > 0)
    RESHARD_TRY(communicator_->stream().copy(pinned_.data() + sent_bytes_,
                                             staging_.data() + sent_bytes_,
                                             static_cast<Index>(received_bytes_)));
  return done_.record(communicator_->stream());
}

void MessageLane::complete() {
  for_staged(false, [&](const Half& h, std::size_t at) {
    std::memcpy(h.bytes, pinned_.data() + at, h.size);
  });
  completed_.insert(completed_.end(), group_.begin(), group_.end());
  group_.clear();
}

Result<bool> MessageLane::advance() {
  switch (state_) {
    case State::idle:
      if (queue_.empty()) return false;
      RESHARD_TRY(give());
      state_ = State::given;
      return true;
    case State::given:
      if (!RESHARD_TRY(communicator_->is_ready())) return false;
      RESHARD_TRY(follow());
      state_ = State::running;
      return true;
    case State::running:
      // Also the errors of messages under way, which never leave the GPU.
      RESHARD_TRY(communicator_->is_ready());
      if (!RESHARD_TRY(done_.is_done())) return false;
      complete();
      state_ = State::idle;
      return true;
  }
  return false;
}

void MessageLane::end(bool cleanly) {
  communicator_->end(cleanly && state_ == State::idle);
  queue_.clear();
  group_.clear();
}

}  // namespace reshard::nccl
