// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/ucx/memory.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "reshard/transport/ucx/library.h"

namespace reshard::ucx {
namespace {

/// Precedes the key in the packed form of a region.
struct Header {
  std::uint32_t number = 0;
  std::uint32_t key_bytes = 0;
  std::uint64_t size = 0;
  std::uint64_t address = 0;
};

Result<std::vector<std::byte>> pack(ucp_context_h context, ucp_mem_h handle, Header header) {
  void* key = nullptr;
  std::size_t bytes = 0;
  if (const auto status = ucp_rkey_pack(context, handle, &key, &bytes); status != UCS_OK)
    return tl::unexpected(library_error("the key of registered memory", status));
  header.key_bytes = static_cast<std::uint32_t>(bytes);
  std::vector<std::byte> out(sizeof header + bytes);
  std::memcpy(out.data(), &header, sizeof header);
  std::memcpy(out.data() + sizeof header, key, bytes);
  ucp_rkey_buffer_release(key);
  return out;
}

}  // namespace

Result<std::uint32_t> SharedMemory::add(std::span<std::byte> memory, ucs_memory_type_t type,
                                        int ranks) {
  ucp_mem_map_params_t params{};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                      UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE;
  params.memory_type = type;
  params.address = memory.data();
  params.length = memory.size();
  Region region{.memory = memory, .handle = nullptr, .packed = {}, .sent_to = {}};
  const auto number = static_cast<std::uint32_t>(regions_.size());
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  if (!memory.empty()) {
    if (const auto status = ucp_mem_map(context_, &params, &region.handle); status != UCS_OK) {
      Error error = library_error(fmt::format("registering {} bytes", memory.size()), status);
      if (type != UCS_MEMORY_TYPE_HOST) error = {Code::unsupported, error.message + " on a GPU"};
      return tl::unexpected(std::move(error));
    }
    auto packed = pack(context_, region.handle, {number, 0, memory.size(), address});
    if (!packed) {
      (void)ucp_mem_unmap(context_, region.handle);
      return tl::unexpected(packed.error());
    }
    region.packed = std::move(*packed);
    by_address_[address] = number;
  }
  region.sent_to.resize(static_cast<std::size_t>(ranks));
  regions_.push_back(std::move(region));
  return number;
}

std::int64_t SharedMemory::find(std::span<const std::byte> bytes) const {
  const auto address = reinterpret_cast<std::uintptr_t>(bytes.data());
  auto after = by_address_.upper_bound(address);
  if (after == by_address_.begin()) return -1;
  const auto& [begin, number] = *--after;
  const std::size_t size = regions_[number].memory.size(), offset = address - begin;
  if (offset > size || bytes.size() > size - offset) return -1;
  return number;
}

void SharedMemory::release() {
  for (const Region& region : regions_)
    if (region.handle != nullptr) (void)ucp_mem_unmap(context_, region.handle);
  regions_.clear();
  by_address_.clear();
}

Result<> PeerRegions::add(ucp_ep_h endpoint, std::span<const std::byte> packed) {
  Header header;
  if (packed.size() < sizeof header) return fail(Code::corrupt, "a memory key that is too short");
  std::memcpy(&header, packed.data(), sizeof header);
  if (header.key_bytes != packed.size() - sizeof header || regions_.contains(header.number))
    return fail(Code::corrupt, "an invalid memory key");
  Region region{header.size, header.address, nullptr};
  const auto status = ucp_ep_rkey_unpack(endpoint, packed.data() + sizeof header, &region.key);
  if (status != UCS_OK) return tl::unexpected(library_error("a peer's memory key", status));
  regions_.emplace(header.number, region);
  return {};
}

Result<PeerRegions::RemoteAddress> PeerRegions::find(std::uint32_t number, std::uint64_t offset,
                                                     std::size_t bytes) const {
  const auto found = regions_.find(number);
  if (found == regions_.end())
    return fail(Code::corrupt, fmt::format("memory region {} is unknown", number));
  const Region& region = found->second;
  if (offset > region.size || bytes > region.size - offset)
    return fail(Code::corrupt,
                fmt::format("{} bytes at offset {} of memory region {}, which has {} bytes", bytes,
                            offset, number, region.size));
  return RemoteAddress{region.address + offset, region.key};
}

void PeerRegions::release() {
  for (const auto& [number, region] : regions_) ucp_rkey_destroy(region.key);
  regions_.clear();
}

}  // namespace reshard::ucx
