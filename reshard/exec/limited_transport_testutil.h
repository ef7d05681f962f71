// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "reshard/transport/transport.h"

namespace reshard {

/// The capability that a limited transport removes from the one it wraps.
enum class Limit {
  none,
  no_address,     ///< peers' memory is reached by get() only.
  no_direct,      ///< capabilities() without `direct`.
  cannot_open,    ///< open() is `unsupported`.
  cannot_share,   ///< share() is `unsupported`.
  registers_too,  ///< capabilities() with `registers`: share() is called for all that is received.
};

/// Wraps a transport and removes a capability, as if it ran over another network. With `hosts` > 1,
/// rank r runs on host r mod `hosts`, and memory of other hosts cannot be opened either.
class LimitedTransport final : public Transport {
 public:
  LimitedTransport(std::unique_ptr<Transport> inner, Limit limit, int hosts = 1)
      : inner_(std::move(inner)), limit_(limit), hosts_(hosts) {}

  std::string_view name() const override { return inner_->name(); }
  Rank rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  Capabilities capabilities() const override {
    Capabilities can = inner_->capabilities();
    if (limit_ == Limit::no_direct) can.direct = false;
    if (limit_ == Limit::registers_too) can = {true, false, true};
    return can;
  }
  Result<std::unique_ptr<Event>> exchange(std::span<const Send> sends,
                                          std::span<const Recv> recvs) override {
    return inner_->exchange(sends, recvs);
  }
  Result<RemoteKey> share(std::span<std::byte> memory) override {
    if (limit_ == Limit::cannot_share) return fail(Code::unsupported, "this memory stays mine");
    shared_ += memory.size();
    return inner_->share(memory);
  }
  Result<RemoteMemory> open(Rank owner, const RemoteKey& key) override {
    const bool far = owner.value() % hosts_ != rank().value() % hosts_;
    if (far || limit_ == Limit::cannot_open)
      return fail(Code::unsupported, "a wall stands between");
    RemoteMemory memory = RESHARD_TRY(inner_->open(owner, key));
    if (limit_ != Limit::no_address) return memory;
    opened_.push_back(memory);
    return RemoteMemory{owner, memory.size, nullptr, opened_.size() - 1};
  }
  Result<> get(std::span<const Get> pieces) override {
    ++gets_;
    if (limit_ != Limit::no_address) return inner_->get(pieces);
    inner_pieces_.assign(pieces.begin(), pieces.end());
    for (Get& piece : inner_pieces_) piece.from = &opened_[piece.from->handle];
    return inner_->get(inner_pieces_);
  }
  void close() override { inner_->close(); }

  std::size_t shared_bytes() const { return shared_; }
  std::size_t gets() const { return gets_; }

 private:
  std::unique_ptr<Transport> inner_;
  Limit limit_;
  int hosts_;
  std::vector<RemoteMemory> opened_;
  std::vector<Get> inner_pieces_;  ///< kept, so that a steady refit allocates nothing.
  std::size_t shared_ = 0, gets_ = 0;
};

}  // namespace reshard
