// SPDX-License-Identifier: Apache-2.0
#include "reshard/gpu_transport/nccl/lane.h"

#include <algorithm>
#include <cstring>

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
/// memory in one direction.
template <class F>
Result<> MessageLane::for_staged(bool sending, F&& f) const {
  std::size_t at = 0;
  for (const Half& h : group_) {
    if (!h.on_host) continue;
    if (h.sending == sending) RESHARD_TRY(f(h, at));
    at += h.size;
  }
  return {};
}

Result<> MessageLane::give() {
  const auto n = static_cast<std::ptrdiff_t>(next_group(queue_, connected_, limits_));
  group_.assign(queue_.begin(), queue_.begin() + n);
  queue_.erase(queue_.begin(), queue_.begin() + n);
  operations_.clear();
  std::size_t at = 0;
  for (const Half& h : group_) {
    std::byte* const bytes = h.on_host ? staging_.data() + at : h.bytes;
    at += h.on_host ? h.size : 0;
    operations_.push_back({h.sending, h.peer.value(), bytes, h.size});
    connected_[h.peer.index()] = true;
  }
  const auto to_gpu = [&](const Half& h, std::size_t staged) -> Result<> {
    std::memcpy(pinned_.data() + staged, h.bytes, h.size);
    return communicator_->stream().copy(staging_.data() + staged, pinned_.data() + staged,
                                        static_cast<Index>(h.size));
  };
  RESHARD_TRY(for_staged(true, to_gpu));
  return communicator_->give(operations_);
}

/// Once NCCL's work is on the stream: what comes after it.
Result<> MessageLane::follow() {
  const auto to_host = [&](const Half& h, std::size_t staged) -> Result<> {
    return communicator_->stream().copy(pinned_.data() + staged, staging_.data() + staged,
                                        static_cast<Index>(h.size));
  };
  RESHARD_TRY(for_staged(false, to_host));
  return done_.record(communicator_->stream());
}

void MessageLane::complete() {
  (void)for_staged(false, [&](const Half& h, std::size_t staged) -> Result<> {
    std::memcpy(h.bytes, pinned_.data() + staged, h.size);
    return {};
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
