// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/exchange_queue.h"

namespace reshard {

ExchangeQueue::ExchangeQueue(const Program& program, Transport* transport,
                             const std::function<std::byte*(BufferId)>& address)
    : transport_(transport) {
  for (std::size_t s = 0; s < program.steps.size(); ++s) {
    const ProgramStep& step = program.steps[s];
    if (step.kind != ProgramStep::Kind::exchange) continue;
    steps_.emplace_back(static_cast<StepId::rep>(s));
    first_send_.push_back(sends_.size());
    first_recv_.push_back(recvs_.size());
    std::uint32_t turn = 0;  // A program lists its messages in the order of the group.
    for (const ProgramMessage& m : program.messages_of(step)) {
      std::byte* const data = address(m.at.buffer) + m.at.offset;
      const auto n = static_cast<std::size_t>(m.bytes);
      if (m.is_send) {
        sends_.push_back({m.peer, MessageId(m.id), {data, n}, turn++});
      } else {
        recvs_.push_back({m.peer, MessageId(m.id), {data, n}, turn++});
      }
    }
  }
  first_send_.push_back(sends_.size());
  first_recv_.push_back(recvs_.size());
  events_.resize(steps_.size());
}

std::optional<StepId> ExchangeQueue::next() const {
  if (begun_ == steps_.size()) return std::nullopt;
  return steps_[begun_];
}

Result<> ExchangeQueue::begin() {
  const auto part = [&](const auto& all, const std::vector<std::size_t>& first) {
    return std::span(all).subspan(first[begun_], first[begun_ + 1] - first[begun_]);
  };
  events_[begun_] =
      RESHARD_TRY(transport_->exchange(part(sends_, first_send_), part(recvs_, first_recv_)));
  ++begun_;
  return {};
}

StepId ExchangeQueue::end() {
  events_[over_].reset();
  return steps_[over_++];
}

void ExchangeQueue::withdraw() {
  for (std::size_t i = over_; i < begun_; ++i) events_[i].reset();
}

}  // namespace reshard
