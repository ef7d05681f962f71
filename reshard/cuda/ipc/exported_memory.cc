// SPDX-License-Identifier: Apache-2.0
#include "reshard/cuda/ipc/exported_memory.h"

#include <fmt/format.h>
#include <unistd.h>

#include "reshard/cuda/driver.h"
#include "reshard/cuda/ipc/memory_key.h"
#include "reshard/cuda/ipc/process_files.h"
#include "reshard/cuda/memory.h"

namespace reshard {
namespace {

using ipc::MemoryKey;

/// Whatever the driver says, the memory cannot be shared.
tl::unexpected<Error> refused(Error error) {
  return fail(Code::unsupported, std::move(error.message));
}

/// A reference to the memory behind a mapped address.
class RetainedHandle {
 public:
  static Result<RetainedHandle> of(const cuda::Device& device, std::byte* at) {
    RetainedHandle out(device);
    auto done = device.call("cuMemRetainAllocationHandle", [&] {
      return device.driver().cuMemRetainAllocationHandle(&out.handle_, at);
    });
    if (done) {
      out.owned_ = true;
      return out;
    }
    return fail(Code::unsupported,
                "only memory of cuMemAlloc() and of virtual memory management can be shared, not "
                "that of a memory pool (cudaMallocAsync): " +
                    done.error().message);
  }
  RetainedHandle(RetainedHandle&& other) noexcept
      : device_(other.device_),
        handle_(other.handle_),
        owned_(std::exchange(other.owned_, false)) {}
  ~RetainedHandle() {
    if (owned_)
      (void)device_.call("cuMemRelease", [&] { return device_.driver().cuMemRelease(handle_); });
  }
  cuda::MemoryHandle get() const { return handle_; }

 private:
  explicit RetainedHandle(const cuda::Device& device) : device_(device) {}
  const cuda::Device& device_;
  cuda::MemoryHandle handle_ = 0;
  bool owned_ = false;
};

Result<> export_allocated(const cuda::Device& device, const GpuRange& range, MemoryKey& key) {
  const cuda::Driver& driver = device.driver();
  if (driver.cuIpcGetMemHandle == nullptr)
    return fail(Code::unsupported, "the NVIDIA driver has no CUDA IPC");
  MemoryKey::Chunk chunk{range.bytes()};
  auto done = device.call("cuIpcGetMemHandle", [&] {
    return driver.cuIpcGetMemHandle(&chunk.handle.emplace(),
                                    reinterpret_cast<cuda::DevicePtr>(range.base()));
  });
  if (!done) return refused(std::move(done).error());
  key.chunks.push_back(chunk);
  return {};
}

/// Exports memory that is mapped: as a file, and as a fabric handle where that works.
Result<> export_chunk(const cuda::Device& device, const GpuAllocation& allocation, MemoryKey& key,
                      std::vector<FileDescriptor>& files) {
  const cuda::Driver& driver = device.driver();
  const RetainedHandle handle = RESHARD_TRY(RetainedHandle::of(device, allocation.base));
  cuda::MemoryProperties properties;
  auto done = device.call("cuMemGetAllocationPropertiesFromHandle", [&] {
    return driver.cuMemGetAllocationPropertiesFromHandle(&properties, handle.get());
  });
  if (!done) return refused(std::move(done).error());
  const auto shared = [&](void* to, cuda::HandleType type) {
    return device.call("cuMemExportToShareableHandle", [&] {
      return driver.cuMemExportToShareableHandle(to, handle.get(), type, 0);
    });
  };
  MemoryKey::Chunk chunk{allocation.bytes};
  Result<> file = fail(Code::unsupported,
                       "its memory was created without a type of handle that processes can share "
                       "(requestedHandleTypes)");
  if ((properties.handle_types & cuda::kFileHandle) != 0) {
    int exported = -1;
    file = shared(&exported, cuda::kFileHandle);
    if (file) files.emplace_back(exported);
    if (file) chunk.file = exported;
  }
  if ((properties.handle_types & cuda::kFabricHandle) != 0 &&
      !shared(&chunk.handle.emplace(), cuda::kFabricHandle))
    chunk.handle.reset();  // It needs a service (IMEX) that may not run.
  if (!file && !chunk.handle) return refused(std::move(file).error());
  key.chunks.push_back(chunk);
  return {};
}

bool has_mapping(const cuda::Driver& d) {
  return d.cuMemRetainAllocationHandle != nullptr &&
         d.cuMemGetAllocationPropertiesFromHandle != nullptr && d.cuMemRelease != nullptr &&
         d.cuMemExportToShareableHandle != nullptr;
}

}  // namespace

Result<ExportedRange> export_gpu_memory(const cuda::Device& device, const GpuRange& range) {
  MemoryKey key;
  key.process = RESHARD_TRY(ipc::process_token());
  key.pid_namespace = ipc::pid_namespace();
  key.pid = ::getpid();
  key.device = RESHARD_TRY(cuda::memory_kind(device, range.base())).ordinal;
  key.base = reinterpret_cast<std::uintptr_t>(range.base());
  key.id = range.id();
  key.is_mapped = range.is_mapped;
  ExportedRange out;
  if (!range.is_mapped) {
    RESHARD_TRY(export_allocated(device, range, key));
  } else {
    if (!has_mapping(device.driver()))
      return fail(Code::unsupported, "the NVIDIA driver is too old to share mapped memory");
    ipc::let_peers_take_files();
    for (const GpuAllocation& allocation : range.allocations)
      RESHARD_TRY(export_chunk(device, allocation, key, out.files));
  }
  out.key = encode(key);
  if (out.key.size() > kMaxGpuMemoryKey)
    return fail(Code::unsupported,
                fmt::format("a range of {} allocations is too many to share", key.chunks.size()));
  return out;
}

std::string gpu_sharing_unavailable() {
  const auto driver = cuda::load_driver();
  if (!driver) return driver.error().message;
  const cuda::Driver& d = **driver;
  if (d.cuIpcGetMemHandle == nullptr || d.cuIpcOpenMemHandle == nullptr ||
      d.cuIpcCloseMemHandle == nullptr || d.cuMemGetAddressRange == nullptr ||
      d.cuPointerGetAttributes == nullptr)
    return "the NVIDIA driver has no CUDA IPC";
  return "";
}

}  // namespace reshard
