// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "reshard/base/keeps_memory.h"
#include "reshard/transport/access_checks.h"
#include "reshard/transport/messages/core.h"

namespace reshard {
namespace {

using engine::Core;
using engine::Step;

class EngineEvent final : public Event, public KeepsMemory<EngineEvent> {
 public:
  EngineEvent(std::shared_ptr<Core> core, std::span<const Send> sends, std::span<const Recv> recvs)
      : core_(std::move(core)), owned_(core_->new_step()), step_(*owned_) {
    core_->post(step_, sends, recvs);
  }
  ~EngineEvent() override {
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
    constexpr int kLooks = 32;  // Passes that moved something between two looks at the clock.
    for (int idle = 0, busy = 0; !settled();) {
      if (core_->progress() && ++busy % kLooks != 0) {
        idle = 0;
        continue;
      }
      if (settled()) break;
      if (deadline.expired()) {
        step_.fail(core_->late(step_));
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
    if (!step_.error && !core_->told(step_)) return false;
    core_->withdraw(step_);
    return done_ = true;
  }

  const std::shared_ptr<Core> core_;
  std::unique_ptr<Step> owned_;
  Step& step_;
  bool done_ = false;
};

class MessageEngine final : public Transport {
 public:
  MessageEngine(std::unique_ptr<Wire> wire, ControlPlane& control)
      : core_(std::make_shared<Core>(std::move(wire), control)) {}
  ~MessageEngine() override { close(); }

  std::string_view name() const override { return wire().name(); }
  Rank rank() const override { return core_->rank(); }
  int size() const override { return core_->size(); }
  Capabilities capabilities() const override { return wire().capabilities(); }

  Result<std::unique_ptr<Event>> exchange(std::span<const Send> sends,
                                          std::span<const Recv> recvs) override {
    RESHARD_TRY(core_->usable("exchange"));
    for (const Send& send : sends) RESHARD_TRY(check_member("send to", send.to, size()));
    for (const Recv& recv : recvs) RESHARD_TRY(check_member("receive from", recv.from, size()));
    return std::make_unique<EngineEvent>(core_, sends, recvs);
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

  Result<> get(const RemoteMemory& from, std::span<const Get> pieces) override {
    RESHARD_TRY(core_->usable("get"));
    RESHARD_TRY(check_member("get from", from.owner, size()));
    RESHARD_TRY(check_inside(from, pieces));
    return wire().get(from, pieces);
  }

  void close() override { core_->close(); }

 private:
  Wire& wire() const { return core_->wire(); }

  std::shared_ptr<Core> core_;
};

}  // namespace

std::unique_ptr<Transport> make_message_engine(std::unique_ptr<Wire> wire, ControlPlane& control) {
  return std::make_unique<MessageEngine>(std::move(wire), control);
}

}  // namespace reshard
