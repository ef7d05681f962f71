// SPDX-License-Identifier: Apache-2.0
#include "reshard/cuda/mapped_memory_testutil.h"

#include "reshard/base/check.h"
#include "reshard/cuda/driver.h"

namespace reshard::cuda {
namespace {

constexpr auto kChunk = static_cast<std::size_t>(MappedMemory::kChunkBytes);

}  // namespace

MappedMemory::MappedMemory(std::shared_ptr<const Device> device, Index bytes, int handle_types)
    : device_(std::move(device)),
      handle_types_(handle_types),
      num_chunks_((bytes + kChunkBytes - 1) / kChunkBytes) {
  RESHARD_CHECK(device_->call("cuMemAddressReserve", [&] {
    return device_->driver().cuMemAddressReserve(&at_, static_cast<std::size_t>(size()), 0, 0, 0);
  }));
  wake();
}

MappedMemory::~MappedMemory() {
  sleep();
  RESHARD_CHECK(device_->call("cuMemAddressFree", [&] {
    return device_->driver().cuMemAddressFree(at_, static_cast<std::size_t>(size()));
  }));
}

void MappedMemory::must(int status) const { RESHARD_CHECK(status == kSuccess); }

void MappedMemory::map(Index chunk) {
  const Driver& driver = device_->driver();
  const DevicePtr at = at_ + static_cast<DevicePtr>(chunk * kChunkBytes);
  const MemoryProperties properties{.handle_types = handle_types_,
                                    .location = {.device = device_->ordinal()}};
  const MemoryAccess access{.location = properties.location};
  RESHARD_CHECK(device_->call("mapping a chunk", [&] {
    MemoryHandle handle = 0;
    must(driver.cuMemCreate(&handle, kChunk, &properties, 0));
    must(driver.cuMemMap(at, kChunk, 0, handle, 0));
    must(driver.cuMemRelease(handle));
    return driver.cuMemSetAccess(at, kChunk, &access, 1);
  }));
}

void MappedMemory::unmap(Index chunk) {
  RESHARD_CHECK(device_->call("unmapping a chunk", [&] {
    return device_->driver().cuMemUnmap(at_ + static_cast<DevicePtr>(chunk * kChunkBytes), kChunk);
  }));
}

void MappedMemory::sleep() {
  for (Index i = 0; i < num_chunks_ && is_awake_; ++i) unmap(i);
  is_awake_ = false;
}

void MappedMemory::wake() {
  for (Index i = 0; i < num_chunks_ && !is_awake_; ++i) map(i);
  is_awake_ = true;
}

void MappedMemory::replace(Index chunk) {
  unmap(chunk);
  map(chunk);
}

}  // namespace reshard::cuda
