// SPDX-License-Identifier: Apache-2.0
// An exchange is done when all its halves are, and its messages to the own rank, which are copied
// when their second side is posted.
#include "reshard/gpu_transport/nccl/group.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace reshard::nccl {
namespace {

constexpr std::chrono::milliseconds kLostTime{100}, kLookEvery{10};

}  // namespace

Result<> NcclGroup::check_usable() const {
  if (control_ == nullptr)
    return fail(Code::invalid_argument,
                fmt::format("nccl: exchange on rank {} after close()", rank_.value()));
  RESHARD_TRY(control_->status());
  if (over_) return tl::unexpected(*over_);
  return {};
}

/// Verifies a message, and appends it to the step and to messages_.
Result<> NcclGroup::add(bool sending, Rank peer, MessageId id, std::span<const std::byte> bytes,
                        std::uint32_t turn, Step& step) {
  const auto where = [&] {
    return fmt::format("message {} {} rank {}", id.value(), sending ? "to" : "from", peer.value());
  };
  if (peer.value() < 0 || peer.value() >= size_)
    return fail(Code::invalid_argument,
                fmt::format("{}: the group has ranks 0 to {}", where(), size_ - 1));
  if (bytes.empty()) return {};
  const cuda::MemoryKind kind = RESHARD_TRY(cuda::memory_kind(*gpu_, bytes.data()));
  if (kind.on_device && kind.ordinal != gpu_->ordinal())
    return fail(Code::invalid_argument,
                fmt::format("{}: its bytes are on GPU {}, expected on GPU {} or in host memory",
                            where(), kind.ordinal, gpu_->ordinal()));
  step.messages.push_back({sending, peer, id, bytes.size()});
  if (peer == rank_) return {};
  // One type serves both directions; a send only reads.
  messages_.push_back({sending, !kind.on_device, peer, id, const_cast<std::byte*>(bytes.data()),
                       bytes.size(), turn});
  return {};
}

/// Sorts the messages of a new step. Errors: an id that is in use twice.
Result<> NcclGroup::refuse_twice(Step& step) const {
  std::ranges::sort(step.messages, {}, &InUse::key);
  const auto twice = [&](const InUse& m) {
    return fail(Code::invalid_argument,
                fmt::format("message {} {} rank {}: the id is in use already", m.id.value(),
                            m.sending ? "to" : "from", m.peer.value()));
  };
  const auto same = std::ranges::adjacent_find(step.messages, {}, &InUse::key);
  if (same != step.messages.end()) return twice(*same);
  for (const auto& other : steps_)
    for (const InUse& m : step.messages)
      if (other->find(m) != nullptr) return twice(m);
  return {};
}

Result<std::shared_ptr<Step>> NcclGroup::post(std::span<const Send> sends,
                                              std::span<const Recv> recvs) {
  RESHARD_TRY(check_usable());
  auto step = std::make_shared<Step>();
  step->number = next_step_++;
  messages_.clear();
  step->messages.reserve(sends.size() + recvs.size());
  for (const Send& s : sends) RESHARD_TRY(add(true, s.to, s.id, s.bytes, s.turn, *step));
  for (const Recv& r : recvs) RESHARD_TRY(add(false, r.from, r.id, r.bytes, r.turn, *step));
  RESHARD_TRY(refuse_twice(*step));
  step->left = step->messages.size();
  if (step->left == 0) return step;
  append_halves(messages_, step->number, segment_bytes_, queue_.queue());
  steps_.push_back(step);
  if (const Result<> copied = post_own(step, sends, recvs); !copied) {
    // The group is over: other messages of the step may be under way.
    fail_all(copied.error());
    return tl::unexpected(copied.error());
  }
  return step;
}

Result<> NcclGroup::post_own(const std::shared_ptr<Step>& step, std::span<const Send> sends,
                             std::span<const Recv> recvs) {
  for (const Send& s : sends)
    if (s.to == rank_ && !s.bytes.empty())
      RESHARD_TRY(copy_own(own_sends_, own_recvs_,
                           {step, const_cast<std::byte*>(s.bytes.data()), s.bytes.size(), s.id},
                           true));
  for (const Recv& r : recvs)
    if (r.from == rank_ && !r.bytes.empty())
      RESHARD_TRY(
          copy_own(own_recvs_, own_sends_, {step, r.bytes.data(), r.bytes.size(), r.id}, false));
  std::erase_if(steps_, [](const auto& s) { return s->done(); });
  return {};
}

/// Copies a message of this rank to itself if its other side is there, and waits for that copy.
Result<> NcclGroup::copy_own(OwnSides& mine, OwnSides& others, OwnSide side, bool sending) {
  const auto other = others.find(side.id);
  if (other == others.end()) {
    mine.emplace(side.id, std::move(side));
    return {};
  }
  const OwnSide& from = sending ? side : other->second;
  const OwnSide& to = sending ? other->second : side;
  if (from.size != to.size)
    return fail(Code::invalid_argument,
                fmt::format("message {}: rank {} sends {} bytes to itself but receives {}",
                            side.id.value(), rank_.value(), from.size, to.size));
  RESHARD_TRY(own_.copy(to.bytes, from.bytes, static_cast<Index>(from.size)));
  RESHARD_TRY(own_.synchronize());
  from.step->complete(*from.step->find({true, rank_, from.id}), from.size);
  to.step->complete(*to.step->find({false, rank_, to.id}), to.size);
  others.erase(other);
  return {};
}

void NcclGroup::settle(const Half& half) {
  const auto step = std::ranges::find(steps_, half.step, [](const auto& s) { return s->number; });
  (*step)->complete(*(*step)->find({half.sending, half.peer, half.id}), half.size);
  if ((*step)->done()) steps_.erase(step);
}

/// True if anything advanced.
Result<bool> NcclGroup::advance() {
  bool moved = false;
  while (RESHARD_TRY(queue_.advance())) moved = true;
  for (const Half& half : queue_.completed()) settle(half);
  queue_.completed().clear();
  return moved;
}

bool NcclGroup::progress() {
  if (over_) return false;
  if (const Result<> status = control_->status(); !status) {
    fail_all(status.error());
    return true;
  }
  const Result<bool> moved = advance();
  if (!moved) fail_all(moved.error());
  if (!moved || *moved || steps_.empty()) {
    lost_since_.reset();
    return true;
  }
  look_for_lost();
  return false;
}

/// NCCL does not notice a peer that is gone, the control plane does. What such a peer sent before
/// may still be under way.
void NcclGroup::look_for_lost() {
  if (!next_look_.expired()) return;
  next_look_ = Deadline::after(kLookEvery);
  const std::vector<Rank> lost = control_->lost();
  if (lost.empty()) return;
  for (const auto& step : steps_)
    for (const InUse& m : step->messages) {
      if (m.bytes == 0 || !std::ranges::binary_search(lost, m.peer)) continue;
      if (!lost_since_) lost_since_ = Deadline::after(kLostTime);
      if (lost_since_->expired())
        fail_all(
            {Code::aborted, fmt::format("nccl: rank {} left before message {} {} it was complete",
                                        m.peer.value(), m.id.value(), m.sending ? "to" : "from")});
      return;
    }
}

/// Ends the group and all its steps; afterwards their memory belongs to the callers again.
void NcclGroup::fail_all(const Error& why) {
  if (over_) return;
  over_ = why;
  queue_.end(false);
  for (const auto& step : steps_) step->error = why;
  steps_.clear();
  own_sends_.clear();
  own_recvs_.clear();
}

void NcclGroup::close() {
  if (control_ == nullptr) return;
  if (!steps_.empty())
    fail_all({Code::aborted, fmt::format("nccl: rank {} closed its transport before this was done",
                                         rank_.value())});
  queue_.end(!over_);
  over_ = Error{Code::invalid_argument, "nccl: used after close()"};
  control_ = nullptr;
}

std::string NcclGroup::missing(const Step& step) const {
  const auto text = [](const auto& m) {
    return fmt::format("message {} {} rank {}", m.id.value(), m.sending ? "to" : "from",
                       m.peer.value());
  };
  const auto of_step = [&](const Half& h) { return h.step == step.number; };
  const auto oldest = queue_.oldest();
  if (const auto h = std::ranges::find_if(oldest, of_step); h != oldest.end())
    return text(*h) + " and its group are not complete";
  const auto left = std::ranges::find_if(step.messages, [](const InUse& m) { return m.bytes > 0; });
  return text(*left) + " has not begun";
}

}  // namespace reshard::nccl
