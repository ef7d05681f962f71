// SPDX-License-Identifier: Apache-2.0
// Steps run one after another, each as the groups of rounds.h. Nothing here blocks: test() passes
// the next group to NCCL once it has accepted the last one, and after the last group queries an
// event on the stream.
#include "reshard/transport/nccl/transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <thread>
#include <utility>

#include "reshard/transport/nccl/library.h"
#include "reshard/transport/nccl/rounds.h"

namespace reshard::nccl {
namespace {

/// Messages per direction in one group: thousands are known to deadlock.
constexpr std::size_t kAtOnce = 128;
constexpr std::chrono::microseconds kNap{50};

struct Step {
  std::vector<Half> halves;
  std::size_t given = 0;          ///< how many were passed to NCCL.
  cudaEvent_t arrived = nullptr;  ///< recorded on the stream after the last group.
  bool done = false;
  std::optional<Error> error;

  Step() = default;
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;
  ~Step() {
    if (arrived != nullptr) cudaEventDestroy(arrived);
  }
};

/// The state that the transport and its events share.
struct Group {
  ControlPlane* control;  ///< null after close().
  std::unique_ptr<Link> link;
  std::deque<std::shared_ptr<Step>> steps;  ///< undone, oldest first.
  std::optional<Error> over;

  /// Ends the group and all its steps; afterwards their memory belongs to the callers again.
  void fail_all(const Error& why) {
    if (over) return;
    over = why;
    link->end(false);
    for (const auto& step : steps) {
      step->error = why;
      step->done = true;
    }
    steps.clear();
  }

  /// True if the oldest step has advanced.
  Result<bool> advance();
  void progress();
  Result<> give(Step& step);
};

Result<> Group::give(Step& step) {
  const auto group = next_group(std::span(step.halves).subspan(step.given));
  RESHARD_TRY(to_result(ncclGroupStart(), "ncclGroupStart"));
  Result<> posted;
  for (const Half& h : group) {
    const ncclResult_t code =
        h.sending
            ? ncclSend(h.bytes, h.size, ncclInt8, h.peer.value(), link->comm(), link->stream())
            : ncclRecv(h.bytes, h.size, ncclInt8, h.peer.value(), link->comm(), link->stream());
    posted = to_result(code, h.sending ? "ncclSend" : "ncclRecv");
    if (!posted) break;
  }
  const Result<> ended = to_result(ncclGroupEnd(), "ncclGroupEnd");
  RESHARD_TRY(std::move(posted));
  step.given += group.size();
  return ended;
}

Result<bool> Group::advance() {
  Step& step = *steps.front();
  if (!RESHARD_TRY(link->ready())) return false;
  if (step.given < step.halves.size()) {
    RESHARD_TRY(give(step));
    return true;
  }
  if (step.arrived == nullptr) {
    RESHARD_TRY(to_result(cudaEventCreateWithFlags(&step.arrived, cudaEventDisableTiming),
                          "cudaEventCreateWithFlags"));
    RESHARD_TRY(to_result(cudaEventRecord(step.arrived, link->stream()), "cudaEventRecord"));
  }
  const cudaError_t state = cudaEventQuery(step.arrived);
  if (state == cudaErrorNotReady) return false;
  RESHARD_TRY(to_result(state, "a message"));
  step.done = true;
  steps.pop_front();
  return true;
}

void Group::progress() {
  if (over) return;
  if (const Result<> status = control->status(); !status) return fail_all(status.error());
  while (!over && !steps.empty()) {
    const Result<bool> moved = advance();
    if (!moved) fail_all(moved.error());
    if (!moved || !*moved) return;
  }
}

class NcclEvent final : public Event {
 public:
  NcclEvent(std::shared_ptr<Group> group, std::shared_ptr<Step> step)
      : group_(std::move(group)), step_(std::move(step)) {}
  ~NcclEvent() override {
    if (!step_->done)
      group_->fail_all(
          {Code::aborted, "nccl: an incomplete event was destroyed, which ends the group"});
  }

  Result<bool> test() override {
    if (!step_->done) group_->progress();
    if (step_->error) return tl::unexpected(*step_->error);
    return step_->done;
  }

  Result<> wait(Deadline deadline) override {
    while (!RESHARD_TRY(test())) {
      if (deadline.expired())
        group_->fail_all(late());
      else
        std::this_thread::sleep_for(kNap);
    }
    return {};
  }

 private:
  Error late() const {
    // A message of the current or next group: which one is missing is unknown.
    const Half& h = step_->halves[std::min(step_->given, step_->halves.size() - 1)];
    return {
        Code::deadline,
        fmt::format("deadline passed with {} of {} messages not passed to NCCL yet; one of those "
                    "in flight is message {} {} rank {}",
                    step_->halves.size() - step_->given, step_->halves.size(), h.id.value(),
                    h.sending ? "to" : "from", h.peer.value())};
  }

  std::shared_ptr<Group> group_;
  std::shared_ptr<Step> step_;
};

class NcclTransport final : public Transport {
 public:
  NcclTransport(ControlPlane& control, std::unique_ptr<Link> link)
      : rank_(control.rank()), size_(control.size()), group_(std::make_shared<Group>()) {
    group_->control = &control;
    group_->link = std::move(link);
  }
  ~NcclTransport() override { close(); }

  std::string_view name() const override { return "nccl"; }
  Rank rank() const override { return rank_; }
  int size() const override { return size_; }
  Capabilities capabilities() const override { return {.message = true}; }

  Result<std::unique_ptr<Event>> exchange(std::span<const Send> sends,
                                          std::span<const Recv> recvs) override {
    if (group_->control == nullptr)
      return fail(Code::invalid_argument,
                  fmt::format("exchange on rank {} after close()", rank_.value()));
    RESHARD_TRY(group_->control->status());
    if (group_->over) return tl::unexpected(*group_->over);
    for (const Send& s : sends) RESHARD_TRY(check("send to", s.to, s.id, s.bytes));
    for (const Recv& r : recvs) RESHARD_TRY(check("receive from", r.from, r.id, r.bytes));
    auto step = std::make_shared<Step>();
    step->halves = plan_rounds(rank_, size_, sends, recvs, kAtOnce);
    step->done = step->halves.empty();
    if (!step->done) group_->steps.push_back(step);
    return std::make_unique<NcclEvent>(group_, std::move(step));
  }

  Result<RemoteKey> share(std::span<std::byte>) override { return unsupported(); }
  Result<RemoteMemory> open(Rank, const RemoteKey&) override { return unsupported(); }
  Result<> get(const RemoteMemory&, std::span<const Get>) override { return unsupported(); }

  void close() override {
    if (group_->control == nullptr) return;
    if (!group_->steps.empty())
      group_->fail_all(
          {Code::aborted,
           fmt::format("rank {} closed its transport before this was done", rank_.value())});
    group_->link->end(!group_->over);
    group_->over = Error{Code::invalid_argument, "nccl: used after close()"};
    group_->control = nullptr;
  }

 private:
  static tl::unexpected<Error> unsupported() {
    return fail(Code::unsupported, "nccl: no shared memory");
  }

  Result<> check(std::string_view what, Rank peer, MessageId id,
                 std::span<const std::byte> bytes) const {
    if (peer.value() < 0 || peer.value() >= size_)
      return fail(Code::invalid_argument, fmt::format("{} rank {}: the group has ranks 0 to {}",
                                                      what, peer.value(), size_ - 1));
    if (bytes.empty()) return {};
    cudaPointerAttributes where{};
    RESHARD_TRY(
        to_result(cudaPointerGetAttributes(&where, bytes.data()), "cudaPointerGetAttributes"));
    if (where.type == cudaMemoryTypeDevice || where.type == cudaMemoryTypeManaged) return {};
    return fail(Code::unsupported,
                fmt::format("{} rank {}: message {} is not in GPU memory, which NCCL requires",
                            what, peer.value(), id.value()));
  }

  const Rank rank_;
  const int size_;
  std::shared_ptr<Group> group_;
};

}  // namespace

std::string library_version() {
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess) return "NCCL";
  return fmt::format("NCCL {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::string unavailable_reason() {
  int devices = 0;
  const cudaError_t code = cudaGetDeviceCount(&devices);
  if (code != cudaSuccess) return fmt::format("no GPU: {}", cudaGetErrorString(code));
  return devices > 0 ? "" : "no GPU: this machine has none, or CUDA_VISIBLE_DEVICES hides them";
}

Result<std::unique_ptr<Transport>> make_transport(ControlPlane& control,
                                                  const TransportOptions& options) {
  std::unique_ptr<Link> link = RESHARD_TRY(Link::make(control, options.deadline));
  return std::unique_ptr<Transport>(std::make_unique<NcclTransport>(control, std::move(link)));
}

}  // namespace reshard::nccl
