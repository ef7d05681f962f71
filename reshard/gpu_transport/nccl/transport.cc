// SPDX-License-Identifier: Apache-2.0
#include "reshard/gpu_transport/nccl/transport.h"

#include <fmt/format.h>

#include <chrono>
#include <thread>
#include <utility>

#include "reshard/gpu_transport/nccl/group.h"

namespace reshard::nccl {
namespace {

constexpr std::chrono::microseconds kNap{50};

class NcclEvent final : public Event {
 public:
  NcclEvent(std::shared_ptr<NcclGroup> group, std::shared_ptr<Step> step)
      : group_(std::move(group)), step_(std::move(step)) {}
  ~NcclEvent() override {
    if (!step_->done())
      group_->fail_all(
          {Code::aborted, "nccl: an incomplete event was destroyed, which ends the group"});
  }

  Result<bool> test() override {
    if (!step_->done()) group_->progress();
    return outcome();
  }

  Result<> wait(Deadline deadline) override {
    while (!RESHARD_TRY(outcome())) {
      if (group_->progress()) continue;
      if (deadline.expired())
        group_->fail_all(
            {Code::deadline, fmt::format("nccl: deadline passed, rank {}: {}",
                                         group_->rank().value(), group_->missing(*step_))});
      else
        std::this_thread::sleep_for(kNap);
    }
    return {};
  }

 private:
  Result<bool> outcome() const {
    if (step_->error) return tl::unexpected(*step_->error);
    return step_->done();
  }

  std::shared_ptr<NcclGroup> group_;
  std::shared_ptr<Step> step_;
};

class NcclTransport final : public Transport {
 public:
  explicit NcclTransport(std::shared_ptr<NcclGroup> group) : group_(std::move(group)) {}
  ~NcclTransport() override { close(); }

  std::string_view name() const override { return "nccl"; }
  Rank rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  Capabilities capabilities() const override {
    return {.message = true, .gpu_messages = true, .rounds = true};
  }

  Result<std::unique_ptr<Event>> exchange(std::span<const Send> sends,
                                          std::span<const Recv> recvs) override {
    auto step = RESHARD_TRY(group_->post(sends, recvs));
    return std::make_unique<NcclEvent>(group_, std::move(step));
  }

  // NCCL's registration of buffers is for all ranks or none, and buys nothing for this memory.
  Result<RemoteKey> share(std::span<std::byte>) override { return unsupported(); }
  Result<RemoteMemory> open(Rank, const RemoteKey&) override { return unsupported(); }
  Result<> get(std::span<const Get>) override { return unsupported(); }
  void close() override { group_->close(); }

 private:
  static tl::unexpected<Error> unsupported() {
    return fail(Code::unsupported, "nccl: no rank reads the memory of another");
  }

  std::shared_ptr<NcclGroup> group_;
};

}  // namespace

std::unique_ptr<Transport> transport_of(std::shared_ptr<NcclGroup> group) {
  return std::make_unique<NcclTransport>(std::move(group));
}

}  // namespace reshard::nccl
