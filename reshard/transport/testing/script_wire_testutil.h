// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reshard/transport/control.h"
#include "reshard/transport/messages/wire.h"

namespace reshard {

/// The calls that a scripted wire has received, and the frames that it delivers.
struct WireScript {
  struct Frame {
    Rank from;
    std::vector<std::byte> bytes;
  };
  std::deque<Frame> to_deliver;         ///< one per poll.
  std::vector<Frame> sent;              ///< `from` is the destination here.
  std::vector<messages::BulkId> bulks;  ///< started and not ended.
  bool describes_sources = false, describes_targets = false;
  std::span<const std::byte> gpu;  ///< memory that counts as a GPU's, if not empty.
  bool closed = false;
};

/// The wire of rank 0; the test plays the other ranks.
class ScriptWire final : public messages::Wire {
 public:
  ScriptWire(std::shared_ptr<WireScript> script, int size)
      : script_(std::move(script)), size_(size) {}

  std::string_view name() const override { return "script"; }
  Rank rank() const override { return Rank{0}; }
  int size() const override { return size_; }
  Capabilities capabilities() const override {
    return {.message = true, .gpu_messages = !script_->gpu.empty()};
  }
  bool on_gpu(std::span<const std::byte> bytes) const override {
    return bytes.data() >= script_->gpu.data() &&
           bytes.data() < script_->gpu.data() + script_->gpu.size();
  }
  std::size_t max_frame() const override { return 1 << 16; }
  Result<> send_frame(Rank to, std::span<const std::byte> frame) override {
    script_->sent.push_back({to, {frame.begin(), frame.end()}});
    return {};
  }
  Result<> send_bulk(Rank, std::uint64_t, std::span<const std::byte>,
                     messages::BulkId id) override {
    script_->bulks.push_back(id);
    return {};
  }
  Result<> recv_bulk(Rank, std::uint64_t, std::span<std::byte>, messages::BulkId id) override {
    script_->bulks.push_back(id);
    return {};
  }
  messages::WireAddress describe_source(Rank, std::span<const std::byte>) override {
    return script_->describes_sources ? messages::WireAddress::of(std::array<std::byte, 16>{})
                                      : messages::WireAddress();
  }
  messages::WireAddress describe_target(Rank, std::span<std::byte>) override {
    return script_->describes_targets ? messages::WireAddress::of(std::array<std::byte, 16>{})
                                      : messages::WireAddress();
  }
  Result<> pull(Rank, std::span<const std::byte> source, std::size_t,
                std::span<std::byte>) override {
    if (source.size() % 2 == 0) return {};
    return fail(Code::unsupported, "an odd address");
  }
  Result<> put(Rank, std::span<const std::byte>, std::span<const std::byte>,
               messages::BulkId id) override {
    script_->bulks.push_back(id);
    return {};
  }
  Result<bool> poll(messages::WireSink& sink) override {
    if (script_->to_deliver.empty()) return false;
    const WireScript::Frame frame = std::move(script_->to_deliver.front());
    script_->to_deliver.pop_front();
    sink.on_frame(frame.from, frame.bytes);
    return true;
  }
  void idle(Deadline) override {}
  void close() override { script_->closed = true; }

 private:
  const std::shared_ptr<WireScript> script_;
  const int size_;
};

/// A control plane without peers.
class LoneControl final : public ControlPlane {
 public:
  explicit LoneControl(int size) : size_(size) {}
  Rank rank() const override { return Rank{0}; }
  int size() const override { return size_; }
  Result<std::vector<std::vector<std::byte>>> all_gather(std::span<const std::byte>,
                                                         Deadline) override {
    return fail(Code::unsupported, "alone");
  }
  Result<> all_gather_into(std::span<const std::byte>, std::span<std::byte>, Deadline) override {
    return fail(Code::unsupported, "alone");
  }
  Result<> barrier(Deadline) override { return {}; }
  void abort(std::string_view reason) override { aborted_ = reason; }
  Result<> status() const override {
    if (aborted_.empty()) return {};
    return fail(Code::aborted, aborted_);
  }
  std::vector<Rank> lost() const override { return {}; }
  void report(std::int64_t) override {}
  std::int64_t reported() const override { return 0; }
  Result<> quiesce(Deadline) override { return {}; }
  void close() override {}

 private:
  const int size_;
  std::string aborted_;
};

}  // namespace reshard
