// SPDX-License-Identifier: Apache-2.0
// The memory of the emulated GPU, and work that copies and fills it.
#include <cstdlib>
#include <cstring>

#include "reshard/cuda/driver.h"
#include "reshard/cuda/emulated_machine_testutil.h"

namespace reshard::cuda {
namespace {

constexpr std::size_t kAlignment = 512, kPage = 4096;

std::size_t rounded(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

int allocate_host(void** at, std::size_t bytes) {
  if (const int status = called_in_context("cuMemHostAlloc"); status != kSuccess) return status;
  if (bytes == 0) return kInvalidValue;
  *at = std::aligned_alloc(kAlignment, rounded(bytes, kAlignment));
  std::memset(*at, 0xee, bytes);
  machine().memory[reinterpret_cast<std::uintptr_t>(*at)] = {.bytes = bytes};
  return kSuccess;
}

/// At the end of its pages, so that what follows is a page that nobody can touch.
int allocate(DevicePtr* at, std::size_t bytes) {
  if (const int status = called_in_context("cuMemAlloc"); status != kSuccess) return status;
  if (bytes == 0) return kInvalidValue;
  if (machine().gpu.allocated_bytes() + bytes > machine().gpu.total_bytes) return kOutOfMemory;
  KnownRange range{.kind = KnownRange::Kind::allocated, .bytes = bytes};
  range.pages = make_page_file(rounded(bytes, kPage), current().back()->device);
  if (range.pages == nullptr) return kOutOfMemory;
  range.offset = range.pages->bytes - rounded(bytes, kAlignment);
  range.view = std::make_shared<PageView>(*range.pages, range.offset, bytes);
  std::memset(range.view->data(), 0xee, bytes);
  *at = reinterpret_cast<DevicePtr>(range.view->data());
  machine().memory[static_cast<std::uintptr_t>(*at)] = std::move(range);
  return kSuccess;
}

int give_back(const char* name, std::uintptr_t at, KnownRange::Kind kind) {
  if (const int status = called_in_context(name); status != kSuccess) return status;
  run_all_streams();
  const auto found = machine().memory.find(at);
  if (found == machine().memory.end() || found->second.kind != kind) return kInvalidValue;
  if (kind == KnownRange::Kind::host) std::free(reinterpret_cast<void*>(at));
  // Whoever has it open yet reads what no tensor has.
  if (kind == KnownRange::Kind::allocated)
    std::memset(reinterpret_cast<void*>(at), 0xdd, found->second.bytes);
  machine().memory.erase(found);
  return kSuccess;
}

/// As a driver of CUDA 13 does: a byte can be registered once, and a byte that CUDA allocated
/// never.
int register_host(std::uintptr_t begin, std::size_t bytes) {
  if (bytes == 0) return kInvalidValue;
  for (const auto& [at, range] : machine().memory)
    if (at < begin + bytes && begin < at + range.bytes)
      return range.kind == KnownRange::Kind::registered ? kIsPinned : kInvalidValue;
  machine().memory[begin] = {.kind = KnownRange::Kind::registered, .bytes = bytes};
  return kSuccess;
}

/// False for an attribute that this driver does not know.
bool set_attribute(void* value, int attribute, std::uintptr_t begin, const KnownRange& range) {
  const bool on_device = range.pages != nullptr;
  switch (attribute) {
    case kRangeBegin: *static_cast<std::uint64_t*>(value) = begin; return true;
    case kRangeBytes: *static_cast<std::uint64_t*>(value) = range.bytes; return true;
    case kMemoryType:
      *static_cast<unsigned*>(value) = on_device ? kDeviceMemory : kHostMemory;
      return true;
    case kDeviceOrdinal:
      *static_cast<int*>(value) = on_device ? range.pages->device : 0;
      return true;
    case kIpcCapable:
      *static_cast<unsigned*>(value) = range.kind == KnownRange::Kind::allocated ? 1 : 0;
      return true;
    case kIsMapped: *static_cast<unsigned*>(value) = 1; return true;
    case kBufferId:
      *static_cast<std::uint64_t*>(value) = on_device ? range.pages->id : 0;
      return true;
    case kMemoryBlockId:
      *static_cast<std::uint64_t*>(value) = on_device ? range.pages->id : 0;
      return machine().gpu.has_block_ids;
    default: return false;
  }
}

bool is_on_device(DevicePtr at) {
  const auto* found = find_range(at);
  return found != nullptr && found->second.pages != nullptr;
}

int pointer_attribute(void* value, int attribute, DevicePtr at) {
  if (const int status = called("cuPointerGetAttribute"); status != kSuccess) return status;
  const auto* found = find_range(at);
  const bool known =
      found != nullptr && set_attribute(value, attribute, found->first, found->second);
  return known ? kSuccess : kInvalidValue;
}

/// Knows no error for addresses without memory: their values are zero.
int pointer_attributes(unsigned count, const int* attributes, void** values, DevicePtr at) {
  if (const int status = called("cuPointerGetAttributes"); status != kSuccess) return status;
  const auto* found = find_range(at);
  for (unsigned i = 0; i < count; ++i) {
    const bool is_long = attributes[i] == kBufferId || attributes[i] == kMemoryBlockId;
    std::memset(values[i], 0, is_long ? sizeof(std::uint64_t) : sizeof(unsigned));
    KnownRange none;
    if (!set_attribute(values[i], attributes[i], 0, found == nullptr ? none : found->second))
      return kInvalidValue;
    if (found == nullptr) std::memset(values[i], 0, is_long ? 8 : 4);
  }
  return kSuccess;
}

}  // namespace

void run_all_streams() {
  const int device = current().empty() ? -1 : current().back()->device;
  block_until([&] {
    bool all = run_all(machine().legacy);
    for (CUstream_st* stream : machine().streams)
      if (device < 0 || stream->device == device) all &= run_all(*stream);
    return all;
  });
}

const std::pair<const std::uintptr_t, KnownRange>* find_range(DevicePtr at) {
  auto found = machine().memory.upper_bound(static_cast<std::uintptr_t>(at));
  if (found == machine().memory.begin()) return nullptr;
  --found;
  return at < found->first + found->second.bytes ? &*found : nullptr;
}

void set_memory(Driver& d) {
  set(d.cuPointerGetAttribute, [](auto... arguments) { return pointer_attribute(arguments...); });
  set(d.cuPointerGetAttributes, [](auto... arguments) { return pointer_attributes(arguments...); });
  set(d.cuMemGetInfo, [](std::size_t* free, std::size_t* total) {
    *total = machine().gpu.total_bytes;
    *free = *total - machine().gpu.allocated_bytes();
    return called_in_context("cuMemGetInfo");
  });
  set(d.cuMemAlloc, [](DevicePtr* at, std::size_t bytes) { return allocate(at, bytes); });
  set(d.cuMemFree, [](DevicePtr at) {
    return give_back("cuMemFree", static_cast<std::uintptr_t>(at), KnownRange::Kind::allocated);
  });
  set(d.cuMemHostAlloc,
      [](void** at, std::size_t bytes, unsigned) { return allocate_host(at, bytes); });
  set(d.cuMemFreeHost, [](void* at) {
    return give_back("cuMemFreeHost", reinterpret_cast<std::uintptr_t>(at), KnownRange::Kind::host);
  });
  set(d.cuMemHostRegister, [](void* at, std::size_t bytes, unsigned) {
    const int status = called_in_context("cuMemHostRegister");
    if (status != kSuccess) return status;
    return register_host(reinterpret_cast<std::uintptr_t>(at), bytes);
  });
  set(d.cuMemHostUnregister, [](void* at) {
    return give_back("cuMemHostUnregister", reinterpret_cast<std::uintptr_t>(at),
                     KnownRange::Kind::registered);
  });
  set(d.cuMemcpyAsync, [](DevicePtr to, DevicePtr from, std::size_t bytes, StreamHandle stream) {
    if (is_on_device(from) && !is_on_device(to)) machine().gpu.copied_to_host += bytes;
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
