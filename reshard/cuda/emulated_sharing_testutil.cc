// SPDX-License-Identifier: Apache-2.0
// Memory of the emulated GPU that processes and GPUs share: IPC handles, and memory that is mapped
// (CUDA's virtual memory management), with the rules of the real ones.
#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "reshard/cuda/driver.h"
#include "reshard/cuda/emulated_machine_testutil.h"

namespace reshard::cuda {
namespace {

constexpr std::size_t kGranularity = std::size_t{2} << 20;
constexpr int kMapFailed = 205, kAlreadyMapped = 208, kInvalidDevice = 101;
using Kind = KnownRange::Kind;

void* at_address(DevicePtr at) { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(at)); }

int address_range(DevicePtr* base, std::size_t* bytes, DevicePtr at) {
  if (const int status = called_in_context("cuMemGetAddressRange"); status != kSuccess)
    return status;
  const auto* found = find_range(at);
  if (found == nullptr || found->second.pages == nullptr) return kNotFound;
  *base = found->first;
  *bytes = found->second.bytes;
  return kSuccess;
}

int get_handle(IpcHandle* handle, DevicePtr at) {
  if (const int status = called_in_context("cuIpcGetMemHandle"); status != kSuccess) return status;
  const auto* found = find_range(at);
  if (found == nullptr || found->second.kind != Kind::allocated) return kInvalidValue;
  const KnownRange& range = found->second;
  const PageTicket ticket = ticket_of(*range.pages, range.offset, range.bytes);
  static_assert(sizeof ticket <= sizeof *handle);
  *handle = {};
  std::memcpy(handle, &ticket, sizeof ticket);
  return kSuccess;
}

int open_handle(DevicePtr* at, const IpcHandle& handle) {
  if (const int status = called_in_context("cuIpcOpenMemHandle"); status != kSuccess) return status;
  PageTicket ticket;
  std::memcpy(static_cast<void*>(&ticket), &handle, sizeof ticket);
  if (ticket.process == ::getpid()) return kInvalidContext;
  if (ticket.device >= machine().gpu.num_devices) return kInvalidDevice;
  KnownRange range{.kind = Kind::opened, .bytes = ticket.bytes};
  range.pages = open_ticket(ticket);
  if (range.pages == nullptr || ticket.offset > range.pages->bytes ||
      ticket.bytes > range.pages->bytes - ticket.offset)
    return kInvalidValue;
  for (auto& [base, known] : machine().memory)
    if (known.kind == Kind::opened && inode_of(known.pages->file.get()) == ticket.inode) {
      ++known.opened;
      *at = base;
      return kSuccess;
    }
  range.opened = 1;
  range.offset = ticket.offset;
  range.view = std::make_shared<PageView>(*range.pages, ticket.offset, ticket.bytes);
  *at = reinterpret_cast<DevicePtr>(range.view->data());
  machine().memory[static_cast<std::uintptr_t>(*at)] = std::move(range);
  return kSuccess;
}

int close_handle(DevicePtr at) {
  if (const int status = called_in_context("cuIpcCloseMemHandle"); status != kSuccess)
    return status;
  run_all_streams();
  const auto found = machine().memory.find(static_cast<std::uintptr_t>(at));
  if (found == machine().memory.end() || found->second.kind != Kind::opened) return kInvalidValue;
  if (--found->second.opened == 0) machine().memory.erase(found);
  return kSuccess;
}

MemoryHandle give_out(std::shared_ptr<PageFile> pages) {
  machine().handles[++machine().last_handle] = {std::move(pages), 1};
  return machine().last_handle;
}

int create(MemoryHandle* handle, std::size_t bytes, const MemoryProperties* properties) {
  if (const int status = called_in_context("cuMemCreate"); status != kSuccess) return status;
  if (bytes == 0 || bytes % kGranularity != 0 ||
      properties->location.device >= machine().gpu.num_devices)
    return kInvalidValue;
  if (machine().gpu.allocated_bytes() + bytes > machine().gpu.total_bytes) return kOutOfMemory;
  auto pages = make_page_file(bytes, properties->location.device);
  if (pages == nullptr) return kOutOfMemory;
  pages->handle_types = properties->handle_types;
  *handle = give_out(std::move(pages));
  return kSuccess;
}

int release(MemoryHandle handle) {
  if (const int status = called_in_context("cuMemRelease"); status != kSuccess) return status;
  const auto found = machine().handles.find(handle);
  if (found == machine().handles.end()) return kInvalidValue;
  if (--found->second.second == 0) machine().handles.erase(found);
  return kSuccess;
}

int retain(MemoryHandle* handle, void* at) {
  if (const int status = called_in_context("cuMemRetainAllocationHandle"); status != kSuccess)
    return status;
  const auto* found = find_range(reinterpret_cast<DevicePtr>(at));
  if (found == nullptr || found->second.kind != Kind::mapped) return kInvalidValue;
  for (auto& [known, memory] : machine().handles)
    if (memory.first == found->second.pages) {
      ++memory.second;
      *handle = known;
      return kSuccess;
    }
  *handle = give_out(found->second.pages);
  return kSuccess;
}

/// The memory of a handle; null if there is no such handle.
PageFile* memory_of(MemoryHandle handle) {
  const auto found = machine().handles.find(handle);
  return found == machine().handles.end() ? nullptr : found->second.first.get();
}

int properties_of(MemoryProperties* properties, MemoryHandle handle) {
  if (const int status = called_in_context("cuMemGetAllocationPropertiesFromHandle");
      status != kSuccess)
    return status;
  const PageFile* pages = memory_of(handle);
  if (pages == nullptr) return kInvalidValue;
  *properties = {};
  properties->handle_types = pages->handle_types;
  properties->location.device = pages->device;
  return kSuccess;
}

int export_handle(void* to, MemoryHandle handle, int type) {
  if (const int status = called_in_context("cuMemExportToShareableHandle"); status != kSuccess)
    return status;
  const PageFile* pages = memory_of(handle);
  if (pages == nullptr || (pages->handle_types & type) == 0) return kInvalidValue;
  const PageTicket ticket = ticket_of(*pages, 0, pages->bytes);
  if (type == kFabricHandle) {
    std::memset(to, 0, sizeof(IpcHandle));
    std::memcpy(to, &ticket, sizeof ticket);
    return kSuccess;
  }
  const int copy = ::fcntl(pages->file.get(), F_DUPFD_CLOEXEC, 0);
  std::memcpy(to, &copy, sizeof copy);
  return copy < 0 ? static_cast<int>(kOutOfMemory) : static_cast<int>(kSuccess);
}

int import_handle(MemoryHandle* handle, void* from, int type) {
  if (const int status = called_in_context("cuMemImportFromShareableHandle"); status != kSuccess)
    return status;
  PageTicket ticket;
  if (type == kFabricHandle) {
    std::memcpy(static_cast<void*>(&ticket), from, sizeof ticket);
  } else {
    ticket.process = ::getpid();
    ticket.file = static_cast<int>(reinterpret_cast<std::intptr_t>(from));
    ticket.inode = inode_of(ticket.file);
  }
  auto pages = open_ticket(ticket);
  if (pages == nullptr || pages->bytes % kGranularity != 0) return kInvalidValue;
  pages->handle_types = type;
  *handle = give_out(std::move(pages));
  return kSuccess;
}

int reserve(DevicePtr* at, std::size_t bytes) {
  if (const int status = called_in_context("cuMemAddressReserve"); status != kSuccess)
    return status;
  if (bytes == 0 || bytes % kGranularity != 0) return kInvalidValue;
  void* const made = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (made == MAP_FAILED) return kOutOfMemory;
  *at = reinterpret_cast<DevicePtr>(made);
  machine().reserved[static_cast<std::uintptr_t>(*at)] = bytes;
  return kSuccess;
}

bool overlaps_memory(DevicePtr at, std::size_t bytes) {
  return std::ranges::any_of(machine().memory, [&](const auto& known) {
    return known.second.kind == Kind::mapped && known.first < at + bytes &&
           at < known.first + known.second.bytes;
  });
}

int free_addresses(DevicePtr at, std::size_t bytes) {
  if (const int status = called_in_context("cuMemAddressFree"); status != kSuccess) return status;
  const auto found = machine().reserved.find(static_cast<std::uintptr_t>(at));
  if (found == machine().reserved.end() || found->second != bytes || overlaps_memory(at, bytes))
    return kInvalidValue;
  machine().reserved.erase(found);
  ::munmap(at_address(at), bytes);
  return kSuccess;
}

/// Nothing can be read or written until cuMemSetAccess().
int map(DevicePtr at, std::size_t bytes, std::size_t offset, MemoryHandle handle) {
  if (const int status = called_in_context("cuMemMap"); status != kSuccess) return status;
  const auto found = machine().handles.find(handle);
  auto room = machine().reserved.upper_bound(static_cast<std::uintptr_t>(at));
  if (found == machine().handles.end() || room == machine().reserved.begin()) return kInvalidValue;
  --room;
  const auto& pages = found->second.first;
  if (offset != 0 || bytes == 0 || bytes % kGranularity != 0 || bytes > pages->bytes ||
      at + bytes > room->first + room->second)
    return kInvalidValue;
  if (overlaps_memory(at, bytes)) return kAlreadyMapped;
  if (::mmap(at_address(at), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, pages->file.get(), 0) ==
      MAP_FAILED)
    return kMapFailed;
  machine().memory[static_cast<std::uintptr_t>(at)] = {
      .kind = Kind::mapped, .bytes = bytes, .pages = pages};
  return kSuccess;
}

/// Calls f(address, range) for the mappings that cover [at, at + bytes) exactly.
template <class F>
int for_mapped(DevicePtr at, std::size_t bytes, F&& f) {
  const auto begin = machine().memory.lower_bound(static_cast<std::uintptr_t>(at));
  auto end = begin;
  DevicePtr next = at;
  while (end != machine().memory.end() && end->first == next && next < at + bytes) {
    if (end->second.kind != Kind::mapped) break;
    next += end->second.bytes;
    ++end;
  }
  if (bytes == 0 || next != at + bytes) return kInvalidValue;
  f(begin, end);
  return kSuccess;
}

int unmap(DevicePtr at, std::size_t bytes) {
  if (const int status = called_in_context("cuMemUnmap"); status != kSuccess) return status;
  run_all_streams();
  return for_mapped(at, bytes, [&](auto begin, auto end) {
    ::mmap(at_address(at), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    machine().memory.erase(begin, end);
  });
}

int set_access(DevicePtr at, std::size_t bytes) {
  if (const int status = called_in_context("cuMemSetAccess"); status != kSuccess) return status;
  return for_mapped(at, bytes,
                    [&](auto, auto) { ::mprotect(at_address(at), bytes, PROT_READ | PROT_WRITE); });
}

void set_mapping(Driver& d) {
  set(d.cuMemAddressReserve, [](DevicePtr* at, std::size_t bytes, std::size_t, DevicePtr,
                                unsigned long long) { return reserve(at, bytes); });
  set(d.cuMemAddressFree,
      [](DevicePtr at, std::size_t bytes) { return free_addresses(at, bytes); });
  set(d.cuMemMap, [](DevicePtr at, std::size_t bytes, std::size_t offset, MemoryHandle handle,
                     unsigned long long) { return map(at, bytes, offset, handle); });
  set(d.cuMemUnmap, [](DevicePtr at, std::size_t bytes) { return unmap(at, bytes); });
  set(d.cuMemSetAccess, [](DevicePtr at, std::size_t bytes, const MemoryAccess*, std::size_t) {
    return set_access(at, bytes);
  });
}

int enable_peer(Context peer) {
  const int status = called_in_context("cuCtxEnablePeerAccess");
  if (status != kSuccess) return status;
  return machine().peers.insert({current().back(), peer}).second
             ? static_cast<int>(kSuccess)
             : static_cast<int>(kPeerAccessEnabled);
}

}  // namespace

void set_sharing(Driver& d) {
  set(d.cuMemGetAddressRange, [](auto... arguments) { return address_range(arguments...); });
  set(d.cuIpcGetMemHandle, [](auto... arguments) { return get_handle(arguments...); });
  set(d.cuIpcOpenMemHandle,
      [](DevicePtr* at, IpcHandle handle, unsigned) { return open_handle(at, handle); });
  set(d.cuIpcCloseMemHandle, [](DevicePtr at) { return close_handle(at); });
  set(d.cuDeviceCanAccessPeer, [](int* can, int device, int peer) {
    *can = machine().gpu.has_peer_access && device != peer ? 1 : 0;
    return called("cuDeviceCanAccessPeer");
  });
  set(d.cuCtxEnablePeerAccess, [](Context peer, unsigned) { return enable_peer(peer); });
  set(d.cuMemCreate, [](MemoryHandle* handle, std::size_t bytes, const MemoryProperties* properties,
                        unsigned long long) { return create(handle, bytes, properties); });
  set(d.cuMemRelease, [](MemoryHandle handle) { return release(handle); });
  set(d.cuMemRetainAllocationHandle, [](auto... arguments) { return retain(arguments...); });
  set(d.cuMemGetAllocationPropertiesFromHandle,
      [](auto... arguments) { return properties_of(arguments...); });
  set(d.cuMemGetAllocationGranularity, [](std::size_t* bytes, const MemoryProperties*, int) {
    *bytes = kGranularity;
    return called("cuMemGetAllocationGranularity");
  });
  set(d.cuMemExportToShareableHandle,
      [](void* to, MemoryHandle handle, int type, unsigned long long) {
        return export_handle(to, handle, type);
      });
  set(d.cuMemImportFromShareableHandle,
      [](auto... arguments) { return import_handle(arguments...); });
  set_mapping(d);
}

}  // namespace reshard::cuda
