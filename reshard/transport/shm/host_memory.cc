// SPDX-License-Identifier: Apache-2.0
// Messages go through the inner transport, memory accesses through shm::PeerMemoryMap, without
// mailboxes. This is part of the program, not of a module: peers map the one arena of the process,
// and a module has its own copy of everything that it links.
#include "reshard/transport/shm/host_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "reshard/transport/checks.h"
#include "reshard/transport/shm/peer_memory_map.h"
#include "reshard/transport/shm/peers.h"

namespace reshard::shm {
namespace {

class WithHostMemory final : public Transport {
 public:
  WithHostMemory(std::unique_ptr<Transport> messages, shm::Peers peers, ControlPlane& control,
                 std::unique_ptr<GpuPointerQuery> gpu)
      : messages_(std::move(messages)),
        control_(&control),
        peers_(std::move(peers)),
        reach_(peers_, messages_->rank(), std::move(gpu)) {}
  ~WithHostMemory() override { close(); }

  std::string_view name() const override { return messages_->name(); }
  Rank rank() const override { return messages_->rank(); }
  int size() const override { return messages_->size(); }
  Capabilities capabilities() const override {
    Capabilities can = messages_->capabilities();
    can.direct = true;
    return can;
  }

  Result<std::unique_ptr<Event>> exchange(std::span<const Send> sends,
                                          std::span<const Recv> recvs) override {
    return messages_->exchange(sends, recvs);
  }

  Result<RemoteKey> share(std::span<std::byte> memory) override {
    RESHARD_TRY(usable("share"));
    return reach_.share(memory);
  }

  Result<RemoteMemory> open(Rank owner, const RemoteKey& key) override {
    RESHARD_TRY(usable("open"));
    RESHARD_TRY(check_member("open memory of", owner, size()));
    return reach_.open(owner, key);
  }

  Result<> get(std::span<const Get> pieces) override {
    RESHARD_TRY(usable("get"));
    RESHARD_TRY(check_gets(pieces, size()));
    return reach_.get(pieces);
  }

  void close() override {
    if (std::exchange(control_, nullptr) == nullptr) return;
    messages_->close();
    reach_.close();
    peers_.peers.clear();
  }

 private:
  Result<> usable(std::string_view what) const {
    if (control_ == nullptr)
      return fail(Code::invalid_argument,
                  fmt::format("{} on rank {} after close()", what, rank().value()));
    return control_->status();
  }

  const std::unique_ptr<Transport> messages_;
  ControlPlane* control_;  ///< null once closed.
  shm::Peers peers_;
  shm::PeerMemoryMap reach_;
};

bool reaches_all(const shm::Peers& all, Rank me) {
  for (std::size_t r = 0; r < all.peers.size(); ++r)
    if (r != me.index() && (all.peers[r].reach & all.peers[r].reached_by) == 0) return false;
  return true;
}

}  // namespace

Result<std::unique_ptr<Transport>> with_direct_access(std::unique_ptr<Transport> messages,
                                                      ControlPlane& control,
                                                      const TransportOptions& options) {
  auto peers = shm::connect_peers(control, options.deadline, shm::Mail::none);
  if (!peers && peers.error().code != Code::unsupported)
    return tl::unexpected(std::move(peers).error());
  const Capabilities can = messages->capabilities();
  // share() has one meaning only: if it registers memory, the network takes precedence.
  if (!peers || can.direct || can.registers || !reaches_all(*peers, control.rank()))
    return messages;
  auto gpu = RESHARD_TRY(GpuPointerQuery::open_if_any(options.gpu));
  return std::make_unique<WithHostMemory>(std::move(messages), *std::move(peers), control,
                                          std::move(gpu));
}

}  // namespace reshard::shm
