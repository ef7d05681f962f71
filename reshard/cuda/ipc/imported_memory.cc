// SPDX-License-Identifier: Apache-2.0
#include "reshard/cuda/ipc/imported_memory.h"

#include <fmt/format.h>

#include <map>
#include <mutex>
#include <tuple>

#include "reshard/cuda/driver.h"
#include "reshard/cuda/ipc/gpu_ranges.h"
#include "reshard/cuda/ipc/memory_key.h"
#include "reshard/cuda/ipc/process_files.h"

namespace reshard {

using cuda::DevicePtr;
using cuda::MemoryHandle;
using ipc::MemoryKey;

namespace {

std::byte* to_bytes(DevicePtr at) {
  return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(at));
}

bool can_import(const cuda::Driver& d) {
  return d.cuMemImportFromShareableHandle != nullptr && d.cuMemAddressReserve != nullptr &&
         d.cuMemAddressFree != nullptr && d.cuMemMap != nullptr && d.cuMemUnmap != nullptr &&
         d.cuMemSetAccess != nullptr && d.cuMemRelease != nullptr;
}

/// The driver's errors mean that this memory is out of reach.
Result<> reach(Result<> done) {
  if (done) return done;
  return fail(Code::unsupported, std::move(done).error().message);
}

/// A handle of a chunk, from its file or its fabric handle. The caller releases it.
Result<MemoryHandle> import_chunk(const cuda::Device& device, const MemoryKey& key,
                                  const MemoryKey::Chunk& chunk) {
  const cuda::Driver& driver = device.driver();
  MemoryHandle handle = 0;
  const auto import = [&](void* from, cuda::HandleType type) {
    return device.call("cuMemImportFromShareableHandle",
                       [&] { return driver.cuMemImportFromShareableHandle(&handle, from, type); });
  };
  Result<> file = fail(Code::unsupported, "it is in another process namespace");
  if (chunk.file >= 0 && key.pid_namespace == ipc::pid_namespace()) {
    auto taken = ipc::take_file(key.pid, chunk.file);
    file = taken ? import(reinterpret_cast<void*>(static_cast<std::intptr_t>(taken->get())),
                          cuda::kFileHandle)
                 : tl::unexpected(std::move(taken).error());
  }
  if (!file && chunk.handle) {
    cuda::IpcHandle fabric = *chunk.handle;
    file = import(&fabric, cuda::kFabricHandle);
  }
  RESHARD_TRY(reach(std::move(file)));
  return handle;
}

/// Memory of this process, of which another part of it made the key.
Result<> check_own(const cuda::Device& device, const MemoryKey& key) {
  const std::span<std::byte> memory(to_bytes(key.base), static_cast<std::size_t>(key.bytes()));
  const auto ranges = gpu_ranges(device, {&memory, 1});
  if (ranges && ranges->size() == 1 && ranges->front().base() == memory.data() &&
      ranges->front().bytes() == key.bytes() && ranges->front().id() == key.id)
    return {};
  return fail(Code::corrupt, "a key of GPU memory of this process names memory that it has not");
}

}  // namespace

/// Memory of another process in the address space of this one.
class ImportedMemory::Mapping {
 public:
  Mapping(std::shared_ptr<const cuda::Device> device, Index bytes)
      : device_(std::move(device)), bytes_(bytes) {}
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (opened_) {
      (void)device_->call("cuIpcCloseMemHandle", [&] { return driver().cuIpcCloseMemHandle(at_); });
    } else {
      unmap();
      if (at_ != 0)
        (void)device_->call("cuMemAddressFree",
                            [&] { return driver().cuMemAddressFree(at_, size()); });
    }
  }

  /// Once.
  Result<> open(const MemoryKey& key) {
    if (driver().cuIpcOpenMemHandle == nullptr || driver().cuMemGetAddressRange == nullptr)
      return fail(Code::unsupported, "the NVIDIA driver has no CUDA IPC");
    RESHARD_TRY(reach(device_->call("cuIpcOpenMemHandle", [&] {
      return driver().cuIpcOpenMemHandle(&at_, *key.chunks[0].handle, cuda::kEnablePeerAccess);
    })));
    opened_ = true;
    DevicePtr base = 0;
    std::size_t bytes = 0;
    RESHARD_TRY(device_->call("cuMemGetAddressRange",
                              [&] { return driver().cuMemGetAddressRange(&base, &bytes, at_); }));
    // A kernel that reads beyond the end would end the work of the whole process.
    if (base != at_ || bytes < size())
      return fail(Code::corrupt, fmt::format("a key of GPU memory names {} bytes of {}", bytes_,
                                             bytes - (at_ - base)));
    id_ = key.id;
    return {};
  }

  /// Maps the chunks, in place of those that are mapped.
  Result<> map(const MemoryKey& key) {
    if (!can_import(driver()))
      return fail(Code::unsupported, "the NVIDIA driver is too old to share mapped memory");
    if (at_ == 0)
      RESHARD_TRY(reach(device_->call("cuMemAddressReserve", [&] {
        return driver().cuMemAddressReserve(&at_, size(), 0, 0, 0);
      })));
    unmap();
    for (const MemoryKey::Chunk& chunk : key.chunks) RESHARD_TRY(map_chunk(key, chunk));
    const cuda::MemoryAccess access{.location = {.device = device_->ordinal()}};
    RESHARD_TRY(reach(device_->call(
        "cuMemSetAccess", [&] { return driver().cuMemSetAccess(at_, size(), &access, 1); })));
    id_ = key.id;
    return {};
  }

  std::byte* data() const { return to_bytes(at_); }
  /// The id of the memory that is mapped; 0: nothing, or not all of it.
  std::uint64_t id() const { return id_; }

 private:
  const cuda::Driver& driver() const { return device_->driver(); }
  std::size_t size() const { return static_cast<std::size_t>(bytes_); }

  Result<> map_chunk(const MemoryKey& key, const MemoryKey::Chunk& chunk) {
    const MemoryHandle handle = RESHARD_TRY(import_chunk(*device_, key, chunk));
    const DevicePtr at = at_ + static_cast<DevicePtr>(mapped_);
    const auto bytes = static_cast<std::size_t>(chunk.bytes);
    auto done =
        device_->call("cuMemMap", [&] { return driver().cuMemMap(at, bytes, 0, handle, 0); });
    // What is mapped keeps the memory.
    (void)device_->call("cuMemRelease", [&] { return driver().cuMemRelease(handle); });
    RESHARD_TRY(reach(std::move(done)));
    chunks_.push_back(bytes);
    mapped_ += chunk.bytes;
    return {};
  }

  void unmap() {
    id_ = 0;
    DevicePtr at = at_;
    for (const std::size_t bytes : chunks_) {
      (void)device_->call("cuMemUnmap", [&] { return driver().cuMemUnmap(at, bytes); });
      at += bytes;
    }
    chunks_.clear();
    mapped_ = 0;
  }

  const std::shared_ptr<const cuda::Device> device_;
  const Index bytes_;
  DevicePtr at_ = 0;
  bool opened_ = false;              ///< by an IPC handle; else addresses are reserved.
  std::vector<std::size_t> chunks_;  ///< that are mapped, from at_ on: bytes.
  Index mapped_ = 0;                 ///< their sum.
  std::uint64_t id_ = 0;
};

/// All that this process has open.
class ImportedMemory::Mappings {
 public:
  static Mappings& all() {
    static Mappings mappings;
    return mappings;
  }

  Result<std::shared_ptr<Mapping>> find_or_open(const std::shared_ptr<const cuda::Device>& device,
                                                const MemoryKey& key) {
    const std::lock_guard lock(mutex_);
    std::erase_if(open_, [](const auto& entry) { return entry.second.expired(); });
    auto& entry = open_[{device->ordinal(), key.process, key.base, key.bytes(), key.is_mapped}];
    auto mapping = entry.lock();
    if (mapping != nullptr && mapping->id() == key.id) return mapping;
    if (mapping == nullptr || !key.is_mapped)
      mapping = std::make_shared<Mapping>(device, key.bytes());
    RESHARD_TRY(key.is_mapped ? mapping->map(key) : mapping->open(key));
    entry = mapping;
    return mapping;
  }

 private:
  /// GPU, owner, address there, bytes, kind.
  using Name = std::tuple<int, std::uint64_t, std::uint64_t, Index, bool>;
  std::mutex mutex_;
  std::map<Name, std::weak_ptr<Mapping>> open_;
};

Result<ImportedMemory> ImportedMemory::open(const std::shared_ptr<const cuda::Device>& device,
                                            std::span<const std::byte> bytes) {
  const MemoryKey key = RESHARD_TRY(ipc::decode_memory_key(bytes));
  const bool is_own = key.process == RESHARD_TRY(ipc::process_token());
  // An IPC handle cannot be opened by its exporter.
  if (is_own && (key.device == device->ordinal() || !key.is_mapped)) {
    RESHARD_TRY(check_own(*device, key));
    if (key.device != device->ordinal()) RESHARD_TRY(device->enable_peer_access(key.device));
    return ImportedMemory(to_bytes(key.base), key.bytes(), nullptr);
  }
  auto mapping = RESHARD_TRY(Mappings::all().find_or_open(device, key));
  std::byte* const data = mapping->data();
  return ImportedMemory(data, key.bytes(), std::move(mapping));
}

}  // namespace reshard
