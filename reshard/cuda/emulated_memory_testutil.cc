// SPDX-License-Identifier: Apache-2.0
// The memory of the emulated GPU, and work that copies and fills it.
#include <cstdlib>
#include <cstring>

#include "reshard/cuda/emulated_machine_testutil.h"

namespace reshard::cuda {
namespace {

int allocate(const char* name, void** at, std::size_t bytes, bool on_device) {
  if (const int status = called_in_context(name); status != kSuccess) return status;
  if (bytes == 0) return kInvalidValue;
  if (on_device && machine().gpu.allocated_bytes() + bytes > machine().gpu.total_bytes)
    return kOutOfMemory;
  *at = std::aligned_alloc(512, (bytes + 511) / 512 * 512);
  std::memset(*at, 0xee, bytes);
  machine().memory[reinterpret_cast<std::uintptr_t>(*at)] = {bytes, on_device};
  return kSuccess;
}

int give_back(const char* name, void* at) {
  if (const int status = called_in_context(name); status != kSuccess) return status;
  for (CUstream_st* stream : machine().streams) run_all(*stream);
  run_all(machine().legacy);
  if (machine().memory.erase(reinterpret_cast<std::uintptr_t>(at)) == 0) return kInvalidValue;
  std::free(at);
  return kSuccess;
}
int pointer_attribute(void* value, int attribute, DevicePtr at) {
  if (const int status = called("cuPointerGetAttribute"); status != kSuccess) return status;
  auto found = machine().memory.upper_bound(static_cast<std::uintptr_t>(at));
  if (found == machine().memory.begin()) return kInvalidValue;
  --found;
  if (at >= found->first + found->second.first) return kInvalidValue;
  if (attribute == kMemoryType)
    *static_cast<unsigned*>(value) = found->second.second ? kDeviceMemory : kHostMemory;
  else
    *static_cast<int*>(value) = 0;
  return kSuccess;
}
}  // namespace

void set_memory(Driver& d) {
  set(d.cuPointerGetAttribute, [](auto... arguments) { return pointer_attribute(arguments...); });
  set(d.cuMemGetInfo, [](std::size_t* free, std::size_t* total) {
    *total = machine().gpu.total_bytes;
    *free = *total - machine().gpu.allocated_bytes();
    return called_in_context("cuMemGetInfo");
  });
  set(d.cuMemAlloc, [](DevicePtr* at, std::size_t bytes) {
    void* made = nullptr;
    const int status = allocate("cuMemAlloc", &made, bytes, true);
    *at = reinterpret_cast<DevicePtr>(made);
    return status;
  });
  set(d.cuMemFree, [](DevicePtr at) {
    return give_back("cuMemFree", reinterpret_cast<void*>(static_cast<std::uintptr_t>(at)));
  });
  set(d.cuMemHostAlloc, [](void** at, std::size_t bytes, unsigned) {
    return allocate("cuMemHostAlloc", at, bytes, false);
  });
  set(d.cuMemFreeHost, [](void* at) { return give_back("cuMemFreeHost", at); });
  set(d.cuMemHostRegister, [](void* at, std::size_t, unsigned) {
    const int status = called_in_context("cuMemHostRegister");
    if (status != kSuccess) return status;
    return machine().registered.insert(at).second ? static_cast<int>(kSuccess)
                                                  : static_cast<int>(kIsPinned);
  });
  set(d.cuMemHostUnregister, [](void* at) {
    const int status = called_in_context("cuMemHostUnregister");
    if (status != kSuccess) return status;
    return machine().registered.erase(at) == 1 ? static_cast<int>(kSuccess) : kInvalidValue;
  });
  set(d.cuMemcpyAsync, [](DevicePtr to, DevicePtr from, std::size_t bytes, StreamHandle stream) {
    return give("cuMemcpyAsync", stream, [=] {
      std::memcpy(reinterpret_cast<void*>(static_cast<std::uintptr_t>(to)),
                  reinterpret_cast<const void*>(static_cast<std::uintptr_t>(from)), bytes);
    });
  });
  set(d.cuMemsetD8Async,
      [](DevicePtr at, unsigned char value, std::size_t bytes, StreamHandle stream) {
        return give("cuMemsetD8Async", stream, [=] {
          std::memset(reinterpret_cast<void*>(static_cast<std::uintptr_t>(at)), value, bytes);
        });
      });
}

}  // namespace reshard::cuda
