// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace reshard {

using Bytes = std::vector<std::byte>;

/// Memory for the messages of the conformance suite. Tests touch it only by these calls, so that it
/// may be a GPU's. Ranks that are threads call at the same time.
class MessageMemory {
 public:
  virtual ~MessageMemory() = default;
  /// Freed with the last copy of the pointer.
  virtual std::shared_ptr<std::byte> allocate(std::size_t bytes) = 0;
  virtual void write(std::byte* to, std::span<const std::byte> from) = 0;
  virtual void read(std::span<std::byte> to, const std::byte* from) = 0;
};

/// Heap memory, so that AddressSanitizer finds accesses beyond it.
class HostMessageMemory final : public MessageMemory {
 public:
  std::shared_ptr<std::byte> allocate(std::size_t bytes) override {
    return {new std::byte[bytes], [](const std::byte* p) { delete[] p; }};
  }
  void write(std::byte* to, std::span<const std::byte> from) override {
    if (!from.empty()) std::memcpy(to, from.data(), from.size());
  }
  void read(std::span<std::byte> to, const std::byte* from) override {
    if (!to.empty()) std::memcpy(to.data(), from, to.size());
  }
};

/// The memories of a rank's messages.
struct MessageMemories {
  std::shared_ptr<MessageMemory> sends, recvs;
};

inline MessageMemories host_memories() {
  const auto host = std::make_shared<HostMessageMemory>();
  return {host, host};
}

/// Bytes in such memory.
class Block {
 public:
  Block(std::shared_ptr<MessageMemory> memory, const Bytes& content)
      : memory_(std::move(memory)), at_(memory_->allocate(content.size())), size_(content.size()) {
    memory_->write(at_.get(), content);
  }
  Block(std::shared_ptr<MessageMemory> memory, std::size_t bytes)
      : Block(std::move(memory), Bytes(bytes)) {}

  /// To be passed to a transport only.
  std::span<std::byte> bytes() const { return {at_.get(), size_}; }
  Bytes read() const {
    Bytes out(size_);
    memory_->read(out, at_.get());
    return out;
  }

 private:
  std::shared_ptr<MessageMemory> memory_;
  std::shared_ptr<std::byte> at_;
  std::size_t size_;
};

}  // namespace reshard
