// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/testing/fault_testutil.h"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <optional>
#include <utility>

#include "reshard/base/check.h"
#include "reshard/base/hash.h"

namespace reshard {
namespace {

/// A random number that depends on nothing but its arguments.
std::uint64_t draw(std::uint64_t seed, std::uint64_t a, std::uint64_t b) {
  return mix64(mix64(seed + mix64(a)) + b);
}

/// Shuffles the items.
template <class Item>
void shuffle(std::vector<Item>& items, std::uint64_t seed) {
  for (std::size_t i = items.size(); i > 1; --i)
    std::swap(items[i - 1], items[draw(seed, i, 0) % i]);
}

struct DelayedSend {
  Send send;
  std::uint64_t polls;  ///< test() calls until it is sent.
};

/// The event of a faulty exchange. It has one part, and one more for each batch of delayed
/// messages; it is done when all parts are.
class FaultEvent final : public Event {
 public:
  explicit FaultEvent(std::shared_ptr<Transport> inner) : inner_(std::move(inner)) {}

  /// Copies the bytes; the copy lives as long as the event.
  std::span<std::byte> keep(std::span<const std::byte> bytes) {
    return copies_.emplace_back(bytes.begin(), bytes.end());
  }
  void delay(DelayedSend delayed) { delayed_.push_back(delayed); }

  Result<> post(std::span<const Send> sends, std::span<const Recv> recvs) {
    parts_.push_back(RESHARD_TRY(inner_->exchange(sends, recvs)));
    return {};
  }

  Result<bool> test() override {
    if (!outcome_) return fail_all();
    Result<bool> all = poll();
    if (all) return all;
    outcome_ = tl::unexpected(std::move(all).error());
    return fail_all();
  }

  Result<> wait(Deadline deadline) override {
    // Send delayed messages before waiting, because all others may depend on them.
    while (outcome_ && !delayed_.empty()) (void)test();
    for (auto& part : parts_) {
      Result<> outcome = part->wait(deadline);
      if (outcome_) outcome_ = std::move(outcome);
    }
    return outcome_;
  }

 private:
  Result<bool> poll() {
    RESHARD_TRY(release());
    bool all = delayed_.empty();
    for (auto& part : parts_) all &= RESHARD_TRY(part->test());
    return all;
  }

  /// Destroys all parts after an error, so that no memory is in use any more.
  Result<bool> fail_all() {
    delayed_.clear();
    parts_.clear();
    return tl::unexpected(outcome_.error());
  }

  Result<> release() {
    std::vector<Send> due;
    std::erase_if(delayed_, [&](DelayedSend& delayed) {
      if (--delayed.polls > 0) return false;
      due.push_back(delayed.send);
      return true;
    });
    if (due.empty()) return {};
    return post(due, {});
  }

  std::shared_ptr<Transport> inner_;
  std::deque<std::vector<std::byte>>
      copies_;  // Before the parts, which borrow from it until they are destroyed.
  std::vector<DelayedSend> delayed_;
  std::vector<std::unique_ptr<Event>> parts_;
  Result<> outcome_;  ///< the first error, if any.
};

class FaultTransport final : public Transport {
 public:
  FaultTransport(std::unique_ptr<Transport> inner, FaultPlan plan)
      : inner_(std::move(inner)), plan_(std::move(plan)) {
    for (const Fault& fault : plan_.faults) RESHARD_CHECK(fault.polls > 0);
  }
  ~FaultTransport() override { inner_->close(); }  // Events may keep the inner transport alive.

  std::string_view name() const override { return inner_->name(); }
  Rank rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  Capabilities capabilities() const override {
    Capabilities can = inner_->capabilities();
    can.gpu_messages = false;  // Some faults copy the bytes.
    return can;
  }
  Result<RemoteKey> share(std::span<std::byte> memory) override { return inner_->share(memory); }
  Result<RemoteMemory> open(Rank owner, const RemoteKey& key) override {
    return inner_->open(owner, key);
  }
  Result<> get(std::span<const Get> pieces) override { return inner_->get(pieces); }
  void close() override { inner_->close(); }

  Result<std::unique_ptr<Event>> exchange(std::span<const Send> sends,
                                          std::span<const Recv> recvs) override {
    auto event = std::make_unique<FaultEvent>(inner_);
    std::vector<Send> now;
    const std::uint64_t step_begin = num_sent_;
    bool reorder = false;
    for (const Send& send : sends) {
      const std::uint64_t n = num_sent_++;
      const std::optional<Fault> fault = fault_at(n);
      if (fault && fault->kind == Fault::Kind::kill) return die(sends, recvs);
      if (fault && fault->kind == Fault::Kind::delay) {
        event->delay({send, fault->polls});
      } else if (!fault || fault->kind != Fault::Kind::drop) {
        now.push_back(fault ? damaged(send, *fault, *event) : send);
      }
      reorder |= fault && fault->kind == Fault::Kind::reorder;
    }
    if (reorder) {
      RESHARD_TRY(post_shuffled(now, recvs, draw(plan_.seed, step_begin, 1), *event));
    } else {
      RESHARD_TRY(event->post(now, recvs));
    }
    return event;
  }

 private:
  std::optional<Fault> fault_at(std::uint64_t message) const {
    const auto it = std::ranges::find(plan_.faults, message, &Fault::message);
    return it == plan_.faults.end() ? std::nullopt : std::optional<Fault>(*it);
  }

  /// The message to send in place of `send`.
  Send damaged(const Send& send, const Fault& fault, FaultEvent& event) const {
    if (send.bytes.empty()) return send;
    if (fault.kind == Fault::Kind::truncate)
      return {send.to, send.id, send.bytes.first(send.bytes.size() - 1)};
    if (fault.kind != Fault::Kind::corrupt) return send;
    const std::span<std::byte> copy = event.keep(send.bytes);
    const std::uint64_t where = draw(plan_.seed, fault.message, 2);
    copy[where / 8 % copy.size()] ^= std::byte{1} << (where % 8);
    return {send.to, send.id, copy};
  }

  Result<> post_shuffled(std::vector<Send> sends, std::span<const Recv> recvs, std::uint64_t seed,
                         FaultEvent& event) const {
    std::vector<Recv> receives(recvs.begin(), recvs.end());
    shuffle(sends, seed);
    shuffle(receives, seed + 1);
    const std::span<const Send> s(sends);
    const std::span<const Recv> r(receives);
    RESHARD_TRY(event.post(s.first(s.size() / 2), r.subspan(r.size() / 2)));
    return event.post(s.subspan(s.size() / 2), r.first(r.size() / 2));
  }

  /// Closes the transport and returns its error.
  Result<std::unique_ptr<Event>> die(std::span<const Send> sends, std::span<const Recv> recvs) {
    inner_->close();
    if (plan_.on_kill) plan_.on_kill();
    return inner_->exchange(sends, recvs);
  }

  std::shared_ptr<Transport> inner_;
  FaultPlan plan_;
  std::uint64_t num_sent_ = 0;
};

}  // namespace

std::unique_ptr<Transport> make_faulty(std::unique_ptr<Transport> inner, FaultPlan plan) {
  return std::make_unique<FaultTransport>(std::move(inner), std::move(plan));
}

FaultPlan random_faults(std::uint64_t seed, Rank rank, std::span<const Fault::Kind> kinds,
                        std::uint64_t count, std::uint64_t messages) {
  RESHARD_CHECK(count == 0 || (messages > 0 && !kinds.empty()));
  FaultPlan plan{{}, draw(seed, static_cast<std::uint64_t>(rank.value()), 3), {}};
  for (std::uint64_t i = 0; i < count; ++i) {
    plan.faults.push_back({kinds[draw(plan.seed, i, 4) % kinds.size()],
                           draw(plan.seed, i, 5) % messages, 1 + draw(plan.seed, i, 6) % 4});
  }
  return plan;
}

}  // namespace reshard
