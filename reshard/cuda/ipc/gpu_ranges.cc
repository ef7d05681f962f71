// SPDX-License-Identifier: Apache-2.0
#include "reshard/cuda/ipc/gpu_ranges.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/base/hash.h"
#include "reshard/cuda/driver.h"

namespace reshard {
namespace {

cuda::DevicePtr to_device_ptr(const void* at) { return reinterpret_cast<cuda::DevicePtr>(at); }

Result<GpuAllocation> allocation_at(const cuda::Device& device, const std::byte* at) {
  const cuda::Driver& driver = device.driver();
  cuda::DevicePtr base = 0;
  std::size_t bytes = 0;
  RESHARD_TRY(
      device.call(fmt::format("cuMemGetAddressRange of {}", static_cast<const void*>(at)),
                  [&] { return driver.cuMemGetAddressRange(&base, &bytes, to_device_ptr(at)); }));
  auto* const first = reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(base));
  if (at < first || at - first >= static_cast<std::ptrdiff_t>(bytes))
    return fail(Code::io, fmt::format("cuMemGetAddressRange gives {} bytes at {} for {}", bytes,
                                      static_cast<void*>(first), static_cast<const void*>(at)));
  return GpuAllocation{first, static_cast<Index>(bytes), RESHARD_TRY(gpu_memory_id(device, first))};
}

Result<bool> is_ipc_capable(const cuda::Device& device, const std::byte* at) {
  unsigned capable = 0;
  RESHARD_TRY(device.call("cuPointerGetAttribute", [&] {
    return device.driver().cuPointerGetAttribute(&capable, cuda::kIpcCapable, to_device_ptr(at));
  }));
  return capable != 0;
}

}  // namespace

std::uint64_t GpuRange::id() const {
  Digest digest;
  for (const GpuAllocation& a : allocations) digest.add(a.id).add(a.bytes);
  return digest.value();
}

Result<std::vector<GpuRange>> gpu_ranges(const cuda::Device& device,
                                         std::span<const std::span<std::byte>> spans) {
  if (device.driver().cuMemGetAddressRange == nullptr)
    return fail(Code::unsupported, "the NVIDIA driver is too old: it lacks cuMemGetAddressRange");
  std::vector<GpuRange> out;
  for (const auto span : spans) {
    const std::byte* const end = span.data() + span.size();
    const std::byte* at = span.data();
    if (!out.empty()) at = std::max<const std::byte*>(at, out.back().end());
    while (at < end) {
      const GpuAllocation next = RESHARD_TRY(allocation_at(device, at));
      const bool is_mapped = !RESHARD_TRY(is_ipc_capable(device, next.base));
      const bool joins =
          !out.empty() && is_mapped && out.back().is_mapped && out.back().end() == next.base;
      if (!joins) out.push_back({{}, is_mapped});
      out.back().allocations.push_back(next);
      at = next.base + next.bytes;
    }
  }
  return out;
}

Result<std::uint64_t> gpu_memory_id(const cuda::Device& device, const std::byte* at) {
  const cuda::Driver& driver = device.driver();
  if (driver.cuPointerGetAttributes == nullptr)
    return fail(Code::unsupported, "the NVIDIA driver is too old: it lacks cuPointerGetAttributes");
  int which[] = {cuda::kIsMapped, cuda::kBufferId, cuda::kMemoryBlockId};
  unsigned is_mapped = 0;
  unsigned long long buffer = 0, block = 0;
  void* values[] = {&is_mapped, &buffer, &block};
  RESHARD_TRY(device.call("cuPointerGetAttributes", [&] {
    int status = driver.cuPointerGetAttributes(3, which, values, to_device_ptr(at));
    if (status != cuda::kInvalidValue) return status;
    block = 0;  // An older driver, which has no ids of physical memory.
    return driver.cuPointerGetAttributes(2, which, values, to_device_ptr(at));
  }));
  return is_mapped == 0 ? 0 : std::max<std::uint64_t>(1, mix64(mix64(buffer) ^ block));
}

}  // namespace reshard
