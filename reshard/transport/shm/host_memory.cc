// SPDX-License-Identifier: Apache-2.0
// Messages go through the inner transport, memory accesses through shm::PeerMemoryMap, without
// mailboxes. This is part of the program, not of a module: peers map the one arena of the process,
// and a module has its own copy of everything that it links.
#include "reshard/transport/shm/host_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "reshard/base/log/log.h"
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

/// Why ranks do not access each other's memory besides `can`; empty if they do.
std::string why_not(const Result<shm::Peers>& all, const Capabilities& can, Rank me) {
  if (!all) return all.error().message;
  // share() has one meaning only: if it registers memory, the network takes precedence.
  if (can.direct || can.registers) return "the transport accesses it";
  for (std::size_t r = 0; r < all->peers.size(); ++r)
    if (r != me.index() && (all->peers[r].reach & all->peers[r].reached_by) == 0)
      return fmt::format("rank {} cannot access this rank's memory, or this rank its", r);
  return "";
}

}  // namespace

Result<std::unique_ptr<Transport>> with_direct_access(std::unique_ptr<Transport> messages,
                                                      ControlPlane& control,
                                                      const TransportOptions& options) {
  auto peers = shm::connect_peers(control, options.deadline, shm::Mail::none);
  if (!peers && peers.error().code != Code::unsupported)
    return tl::unexpected(std::move(peers).error());
  if (const std::string why = why_not(peers, messages->capabilities(), control.rank());
      !why.empty()) {
    log_event(LogLevel::info, "transport", control.rank().value(), [&] {
      return fmt::format("{}: no direct access to the memory of this host's processes: {}",
                         messages->name(), why);
    });
    return messages;
  }
  auto gpu = RESHARD_TRY(GpuPointerQuery::open_if_any(options.gpu));
  return std::make_unique<WithHostMemory>(std::move(messages), *std::move(peers), control,
                                          std::move(gpu));
}

}  // namespace reshard::shm
