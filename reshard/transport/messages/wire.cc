// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/messages/wire.h"

#include <fmt/format.h>

#include <utility>

#include "reshard/base/containers/pooled.h"
#include "reshard/transport/checks.h"
#include "reshard/transport/messages/matcher.h"

namespace reshard::messages {
namespace {

tl::unexpected<Error> unsupported(const Wire& wire, std::string_view what) {
  return fail(Code::unsupported, fmt::format("{}: no {}", wire.name(), what));
}

/// The event of one exchange.
class StepEvent final : public Event, public Pooled<StepEvent> {
 public:
  StepEvent(std::shared_ptr<Matcher> core, std::span<const Send> sends, std::span<const Recv> recvs)
      : core_(std::move(core)), owned_(core_->new_step()), step_(*owned_) {
    core_->post(step_, sends, recvs);
  }
  ~StepEvent() override {
    if (!done_) core_->withdraw(step_);
    core_->give_back(std::move(owned_));
  }

  Result<bool> test() override {
    if (!settled()) {
      (void)core_->progress();
      (void)settled();
    }
    if (done_ && step_.error) return tl::unexpected(*step_.error);
    return done_;
  }

  Result<> wait(Deadline deadline) override {
    constexpr int kPassesPerCheck = 32;  // Passes that move bytes between two looks at the clock.
    for (int idle = 0, busy = 0; !settled();) {
      if (core_->progress() && ++busy % kPassesPerCheck != 0) {
        idle = 0;
        continue;
      }
      if (settled()) break;
      if (deadline.expired()) {
        step_.fail(core_->deadline_error(step_));
      } else {
        core_->pause(idle++, deadline);
      }
    }
    if (step_.error) return tl::unexpected(*step_.error);
    return {};
  }

 private:
  bool settled() {
    if (done_ || (step_.left != 0 && !step_.error)) return done_;
    if (!step_.error && !core_->drained(step_)) return false;
    core_->withdraw(step_);
    return done_ = true;
  }

  const std::shared_ptr<Matcher> core_;
  std::unique_ptr<Step> owned_;
  Step& step_;
  bool done_ = false;
};

class MessageTransport final : public Transport {
 public:
  MessageTransport(std::unique_ptr<Wire> wire, ControlPlane& control)
      : core_(std::make_shared<Matcher>(std::move(wire), control)) {}
  ~MessageTransport() override { close(); }

  std::string_view name() const override { return wire().name(); }
  Rank rank() const override { return core_->rank(); }
  int size() const override { return core_->size(); }
  Capabilities capabilities() const override { return wire().capabilities(); }

  Result<std::unique_ptr<Event>> exchange(std::span<const Send> sends,
                                          std::span<const Recv> recvs) override {
    RESHARD_TRY(core_->usable("exchange"));
    for (const Send& send : sends) RESHARD_TRY(check_member("send to", send.to, size()));
    for (const Recv& recv : recvs) RESHARD_TRY(check_member("receive from", recv.from, size()));
    return std::make_unique<StepEvent>(core_, sends, recvs);
  }

  Result<RemoteKey> share(std::span<std::byte> memory) override {
    RESHARD_TRY(core_->usable("share"));
    return wire().share(memory);
  }

  Result<RemoteMemory> open(Rank owner, const RemoteKey& key) override {
    RESHARD_TRY(core_->usable("open"));
    RESHARD_TRY(check_member("open memory of", owner, size()));
    return wire().open(owner, key);
  }

  Result<> get(std::span<const Get> pieces) override {
    RESHARD_TRY(core_->usable("get"));
    RESHARD_TRY(check_gets(pieces, size()));
    return wire().get(pieces);
  }

  void close() override { core_->close(); }

 private:
  Wire& wire() const { return core_->wire(); }

  std::shared_ptr<Matcher> core_;
};

}  // namespace

bool Wire::on_gpu(std::span<const std::byte>) const { return false; }

WireAddress Wire::describe_source(Rank, std::span<const std::byte>) { return {}; }
WireAddress Wire::describe_target(Rank, std::span<std::byte>) { return {}; }

Result<> Wire::pull(Rank, std::span<const std::byte>, std::size_t, std::span<std::byte>) {
  return unsupported(*this, "pull");
}
Result<> Wire::put(Rank, std::span<const std::byte>, std::span<const std::byte>, BulkId) {
  return unsupported(*this, "put");
}
Result<RemoteKey> Wire::share(std::span<std::byte>) { return unsupported(*this, "shared memory"); }
Result<RemoteMemory> Wire::open(Rank, const RemoteKey&) {
  return unsupported(*this, "shared memory");
}
Result<> Wire::get(std::span<const Get>) { return unsupported(*this, "get"); }

std::unique_ptr<Transport> make_transport(std::unique_ptr<Wire> wire, ControlPlane& control) {
  return std::make_unique<MessageTransport>(std::move(wire), control);
}

}  // namespace reshard::messages
