// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "reshard/transport/inproc/event_count.h"
#include "reshard/transport/inproc/inproc.h"
#include "reshard/transport/messages/wire.h"
#include "reshard/transport/testing/untouchable_memory_testutil.h"

namespace reshard {

/// How the bulks of a loopback wire travel.
enum class LoopbackMethod { pull, put, tagged };

/// The state that the loopback wires of one group share. One mutex guards all of it, copies
/// included.
struct LoopbackNet {
  struct Frame {
    Rank from;
    std::vector<std::byte> bytes;
  };
  struct Bulk {
    Rank peer;
    std::uint64_t tag;
    std::byte* data;
    std::size_t bytes;
    messages::BulkId id;
  };
  struct Location {
    std::byte* data;
    std::size_t bytes;
    std::uint64_t revoked;
  };
  struct End {
    bool closed = false;
    std::uint64_t revoked = 0;
    std::deque<Frame> frames;
    std::vector<Bulk> sends, recvs;
    std::vector<std::pair<messages::BulkId, Result<>>> over;
    inproc::EventCount event_count;
  };

  LoopbackNet(int n, LoopbackMethod chosen, bool takes_gpu)
      : method(chosen), gpu(takes_gpu), ends(static_cast<std::size_t>(n)) {}
  End& end(Rank rank) { return ends[rank.index()]; }

  const LoopbackMethod method;
  const bool gpu;  ///< bulks and puts take UntouchableMemory.
  std::mutex mutex;
  std::deque<End> ends;
};

/// A wire between threads that stresses the code above it: small frames, delivered a few at a time,
/// and bulks that end late.
class LoopbackWire final : public messages::Wire {
 public:
  LoopbackWire(std::shared_ptr<LoopbackNet> net, Rank rank) : net_(std::move(net)), rank_(rank) {}
  ~LoopbackWire() override { close(); }

  std::string_view name() const override { return "loopback"; }
  Rank rank() const override { return rank_; }
  int size() const override { return static_cast<int>(net_->ends.size()); }
  Capabilities capabilities() const override {
    return {.message = true, .gpu_messages = net_->gpu};
  }
  bool on_gpu(std::span<const std::byte> bytes) const override {
    return UntouchableMemory::instance()->contains(bytes.data());
  }
  std::size_t max_frame() const override { return 4096 + 64; }

  Result<> send_frame(Rank to, std::span<const std::byte> frame) override {
    const std::lock_guard lock(net_->mutex);
    if (frame.size() > max_frame()) return fail(Code::invalid_argument, "a frame beyond the limit");
    RESHARD_TRY(alive(to));
    net_->end(to).frames.push_back({rank_, {frame.begin(), frame.end()}});
    net_->end(to).event_count.notify();
    return {};
  }
  Result<> send_bulk(Rank to, std::uint64_t tag, std::span<const std::byte> bytes,
                     messages::BulkId id) override {
    const std::lock_guard lock(net_->mutex);
    RESHARD_TRY(alive(to));
    mine().sends.push_back({to, tag, const_cast<std::byte*>(bytes.data()), bytes.size(), id});
    net_->end(to).event_count.notify();
    return {};
  }
  Result<> recv_bulk(Rank from, std::uint64_t tag, std::span<std::byte> bytes,
                     messages::BulkId id) override {
    const std::lock_guard lock(net_->mutex);
    RESHARD_TRY(alive(from));
    mine().recvs.push_back({from, tag, bytes.data(), bytes.size(), id});
    return {};
  }

  messages::WireAddress describe_source(Rank, std::span<const std::byte> bytes) override {
    if (net_->method != LoopbackMethod::pull) return {};
    return messages::WireAddress::of(
        LoopbackNet::Location{const_cast<std::byte*>(bytes.data()), bytes.size(), mine().revoked});
  }
  messages::WireAddress describe_target(Rank, std::span<std::byte> bytes) override {
    return net_->method == LoopbackMethod::put
               ? messages::WireAddress::of(LoopbackNet::Location{bytes.data(), bytes.size(), 0})
               : messages::WireAddress();
  }
  Result<> pull(Rank from, std::span<const std::byte> source, std::size_t offset,
                std::span<std::byte> into) override {
    const std::lock_guard lock(net_->mutex);
    const LoopbackNet::Location location = decode(source);
    if (location.revoked != net_->end(from).revoked || net_->end(from).closed || ++pulls_ % 50 == 0)
      return fail(Code::unsupported, "it was taken back");
    if (!into.empty()) std::memcpy(into.data(), location.data + offset, into.size());
    return {};
  }
  void revoke() override {
    const std::lock_guard lock(net_->mutex);
    ++mine().revoked;
  }
  Result<> put(Rank to, std::span<const std::byte> target, std::span<const std::byte> bytes,
               messages::BulkId id) override {
    const std::lock_guard lock(net_->mutex);
    RESHARD_TRY(alive(to));
    copy(decode(target).data, bytes.data(), bytes.size());
    mine().over.emplace_back(id, Result<>());
    return {};
  }

  Result<bool> poll(messages::WireSink& sink) override {
    constexpr std::size_t kFewFrames = 3;
    std::deque<LoopbackNet::Frame> frames;
    std::vector<std::pair<messages::BulkId, Result<>>> over;
    {
      const std::lock_guard lock(net_->mutex);
      over.swap(mine().over);
      meet();
      while (!mine().frames.empty() && frames.size() < kFewFrames) {
        frames.push_back(std::move(mine().frames.front()));
        mine().frames.pop_front();
      }
    }
    for (const auto& [id, outcome] : over) sink.on_bulk(id, outcome);
    for (const auto& frame : frames) sink.on_frame(frame.from, frame.bytes);
    seen_ = mine().event_count.count();
    return !frames.empty() || !over.empty();
  }

  void idle(Deadline until) override {
    const std::uint64_t seen = seen_;
    seen_ = mine().event_count.count();
    mine().event_count.wait(seen, until);
  }

  void close() override {
    const std::lock_guard lock(net_->mutex);
    if (mine().closed) return;
    mine().closed = true;
    mine().sends.clear();
    mine().recvs.clear();
    for (LoopbackNet::End& end : net_->ends) {
      drop(end, end.sends);
      drop(end, end.recvs);
      end.event_count.notify();
    }
  }

 private:
  /// As a library that is aware of GPU memory copies.
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) const {
    if (net_->gpu) to = UntouchableMemory::instance()->inside(to);
    std::memcpy(to, net_->gpu ? UntouchableMemory::instance()->inside(from) : from, bytes);
  }
  static LoopbackNet::Location decode(std::span<const std::byte> key) {
    LoopbackNet::Location location{};
    std::memcpy(&location, key.data(), sizeof location);
    return location;
  }
  LoopbackNet::End& mine() { return net_->end(rank_); }
  Result<> alive(Rank peer) const {
    if (!net_->end(peer).closed) return {};
    return fail(Code::aborted, "rank " + std::to_string(peer.value()) + " is gone");
  }

  /// Copies the matched bulks of this rank; they end at the next poll.
  void meet() {
    std::erase_if(mine().recvs, [&](const LoopbackNet::Bulk& recv) {
      auto& sends = net_->end(recv.peer).sends;
      for (auto it = sends.begin(); it != sends.end(); ++it) {
        if (it->peer != rank_ || it->tag != recv.tag) continue;
        copy(recv.data, it->data, recv.bytes);
        mine().over.emplace_back(recv.id, Result<>());
        net_->end(recv.peer).over.emplace_back(it->id, Result<>());
        net_->end(recv.peer).event_count.notify();
        sends.erase(it);
        return true;
      }
      return false;
    });
  }

  void drop(LoopbackNet::End& end, std::vector<LoopbackNet::Bulk>& bulks) {
    std::erase_if(bulks, [&](const LoopbackNet::Bulk& bulk) {
      if (bulk.peer != rank_) return false;
      end.over.emplace_back(bulk.id, alive(rank_));
      return true;
    });
  }

  const std::shared_ptr<LoopbackNet> net_;
  const Rank rank_;
  std::uint64_t seen_ = 0, pulls_ = 0;
};

/// A group of threads with messages over loopback wires, which take GPU memory if `kGpu`.
template <LoopbackMethod kWay, bool kGpu = false>
class LoopbackGroup {
 public:
  static Result<LoopbackGroup> create(int size) {
    return LoopbackGroup(RESHARD_TRY(InprocGroup::create(size)), size);
  }
  Result<std::unique_ptr<ControlPlane>> control(Rank rank) {
    auto control = RESHARD_TRY(planes_.control(rank));
    controls_[rank.index()] = control.get();
    return control;
  }
  /// @pre control(rank) was called before
  Result<std::unique_ptr<Transport>> transport(Rank rank) {
    return messages::make_transport(std::make_unique<LoopbackWire>(net_, rank),
                                    *controls_[rank.index()]);
  }

 private:
  LoopbackGroup(InprocGroup planes, int size)
      : planes_(std::move(planes)),
        net_(std::make_shared<LoopbackNet>(size, kWay, kGpu)),
        controls_(static_cast<std::size_t>(size)) {}

  InprocGroup planes_;
  std::shared_ptr<LoopbackNet> net_;
  std::vector<ControlPlane*> controls_;
};

}  // namespace reshard
