// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/inproc/inproc.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <mutex>
#include <utility>

#include "reshard/transport/checks.h"
#include "reshard/transport/inproc/group.h"

namespace reshard {
namespace {

using inproc::Member;
using inproc::SharedGroup;

/// The content of a RemoteKey. The group's number tells it from keys of other groups and from
/// damaged ones.
struct Key {
  std::uint64_t group;
  std::uint64_t owner;
  std::byte* data;
  std::uint64_t bytes;
};

class InprocTransport final : public Transport {
 public:
  explicit InprocTransport(std::shared_ptr<Member> member) : member_(std::move(member)) {}
  ~InprocTransport() override { close(); }

  std::string_view name() const override { return "inproc"; }
  Rank rank() const override { return member_->rank; }
  int size() const override { return member_->group->size; }
  Capabilities capabilities() const override { return {.message = true, .direct = true}; }

  Result<std::unique_ptr<Event>> exchange(std::span<const Send> sends,
                                          std::span<const Recv> recvs) override {
    RESHARD_TRY(usable("exchange"));
    for (const Send& send : sends) RESHARD_TRY(check_member("send to", send.to, size()));
    for (const Recv& recv : recvs) RESHARD_TRY(check_member("receive from", recv.from, size()));
    return std::make_unique<inproc::LentStep>(member_, sends, recvs);
  }

  Result<RemoteKey> share(std::span<std::byte> memory) override {
    RESHARD_TRY(usable("share"));
    const Key key{member_->group->number, static_cast<std::uint64_t>(rank().value()), memory.data(),
                  memory.size()};
    RemoteKey bytes(sizeof key);
    std::memcpy(bytes.data(), &key, sizeof key);
    return bytes;
  }

  Result<RemoteMemory> open(Rank owner, const RemoteKey& bytes) override {
    RESHARD_TRY(usable("open"));
    RESHARD_TRY(check_member("open memory of", owner, size()));
    Key key{};
    if (bytes.size() == sizeof key) std::memcpy(&key, bytes.data(), sizeof key);
    if (key.group != member_->group->number ||
        key.owner != static_cast<std::uint64_t>(owner.value())) {
      return fail(
          Code::corrupt,
          fmt::format("a memory key of {} bytes was not made by rank {} of this group; pass on "
                      "what its share() returned",
                      bytes.size(), owner.value()));
    }
    return RemoteMemory{owner, key.bytes, key.data, 0};
  }

  Result<> get(std::span<const Get> pieces) override {
    RESHARD_TRY(usable("get"));
    RESHARD_TRY(check_gets(pieces, size()));
    for (const Get& piece : pieces)
      if (!piece.into.empty())
        std::memcpy(piece.into.data(), piece.from->address + piece.offset, piece.into.size());
    return {};
  }

  void close() override {
    if (member_->closed) return;
    member_->closed = true;
    SharedGroup& group = *member_->group;
    // Set before the mailboxes are searched: what is posted after the search sees the flag.
    group.closed[rank().index()].store(true, std::memory_order_release);
    const Error error{
        Code::aborted,
        fmt::format("rank {} closed its transport before this was done", rank().value())};
    while (!member_->undone.empty()) member_->undone.back()->abandon(error);
    for (auto& mailbox : group.mailboxes) mailbox.fail_messages_of(rank(), member_->wake);
    member_->wake.notify(group.event_counts);
  }

 private:
  Result<> usable(std::string_view what) const {
    if (member_->closed) {
      return fail(Code::invalid_argument,
                  fmt::format("{} on rank {} after close()", what, rank().value()));
    }
    const auto& collectives = member_->group->collectives;
    if (collectives.aborted()) return tl::unexpected(collectives.abort_error());
    return {};
  }

  std::shared_ptr<Member> member_;
};

class InprocControl final : public ControlPlane {
 public:
  InprocControl(std::shared_ptr<SharedGroup> group, Rank rank)
      : group_(std::move(group)), rank_(rank) {}
  ~InprocControl() override { close(); }

  Rank rank() const override { return rank_; }
  int size() const override { return group_->size; }

  Result<std::vector<std::vector<std::byte>>> all_gather(std::span<const std::byte> mine,
                                                         Deadline deadline) override {
    return *RESHARD_TRY(group_->collectives.meet(rank_, "all_gather", mine, deadline));
  }

  Result<> all_gather_into(std::span<const std::byte> mine, std::span<std::byte> all,
                           Deadline deadline) override {
    return group_->collectives.meet_into(rank_, mine, all, deadline);
  }

  Result<> barrier(Deadline deadline) override {
    RESHARD_TRY(group_->collectives.meet(rank_, inproc::CollectiveState::kBarrier, {}, deadline));
    return {};
  }

  void abort(std::string_view reason) override {
    if (group_->collectives.abort(rank_, reason)) group_->notify_all_ranks();
  }

  Result<> status() const override {
    if (group_->collectives.aborted()) return tl::unexpected(group_->collectives.abort_error());
    return {};
  }

  std::vector<Rank> lost() const override { return group_->collectives.closed(); }
  void report(std::int64_t amount) override { group_->reported += amount; }
  std::int64_t reported() const override { return group_->reported; }

  Result<> quiesce(Deadline deadline) override {
    return group_->collectives.quiesce(rank_, deadline);
  }
  void close() override { group_->collectives.close(rank_); }

 private:
  std::shared_ptr<SharedGroup> group_;
  const Rank rank_;
};

}  // namespace

struct InprocGroup::State {
  explicit State(int size)
      : group(std::make_shared<SharedGroup>(size)),
        transport_taken(group->closed.size()),
        control_taken(group->closed.size()) {}

  Result<> take(std::vector<bool>& taken, std::string_view what, Rank rank) {
    const std::lock_guard lock(mutex);
    if (rank.value() < 0 || rank.value() >= group->size) {
      return fail(Code::invalid_argument, fmt::format("{} of rank {}: the group has ranks 0 to {}",
                                                      what, rank.value(), group->size - 1));
    }
    if (taken[rank.index()]) {
      return fail(
          Code::invalid_argument,
          fmt::format("{} of rank {} was taken before; each rank has one", what, rank.value()));
    }
    taken[rank.index()] = true;
    return {};
  }

  std::shared_ptr<SharedGroup> group;
  std::mutex mutex;
  std::vector<bool> transport_taken, control_taken;
};

Result<InprocGroup> InprocGroup::create(int size) {
  constexpr int kMaxRanks = 65536;
  if (size < 1 || size > kMaxRanks) {
    return fail(Code::invalid_argument,
                fmt::format("a group of {} ranks: must be 1 to {}", size, kMaxRanks));
  }
  return InprocGroup(std::make_shared<State>(size));
}

int InprocGroup::size() const { return state_->group->size; }

Result<std::unique_ptr<Transport>> InprocGroup::transport(Rank rank) {
  RESHARD_TRY(state_->take(state_->transport_taken, "the transport", rank));
  return std::make_unique<InprocTransport>(std::make_shared<Member>(state_->group, rank));
}

Result<std::unique_ptr<ControlPlane>> InprocGroup::control(Rank rank) {
  RESHARD_TRY(state_->take(state_->control_taken, "the control plane", rank));
  return std::make_unique<InprocControl>(state_->group, rank);
}

}  // namespace reshard
