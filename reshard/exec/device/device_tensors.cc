// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/device/device_tensors.h"

#include <fmt/format.h>

namespace reshard {
namespace {

/// Calls f(at on the GPU, at in host memory, bytes), a Result, for every tensor.
template <class F>
Result<> for_each_tensor(const RankBuffers& device, const RankBuffers& host, F&& f) {
  const ModelLayout& layout = device.layout();
  for (const Rank r : device.ranks()) {
    for (const SlotId slot : layout.slots_of(r)) {
      const Index bytes = device.bytes(r, slot);
      if (bytes == 0) continue;
      if (host.at(r, slot) == nullptr)
        return tl::unexpected(missing_memory("host", layout, r, slot));
      RESHARD_TRY(f(device.at(r, slot), host.at(r, slot), bytes));
    }
  }
  return {};
}

}  // namespace

Result<DeviceTensors> DeviceTensors::allocate(const std::shared_ptr<const ModelLayout>& layout,
                                              std::span<const Rank> ranks,
                                              const std::shared_ptr<const cuda::Device>& device) {
  DeviceTensors out((RankBuffers(layout)));
  out.buffers_.set_device(device);
  for (const Rank r : ranks) {
    const Index bytes = bytes_of_rank(*layout, r);
    auto buffer = cuda::Buffer::on_device(device, bytes);
    if (!buffer)
      return tl::unexpected(
          std::move(buffer).error().in(fmt::format("weights of rank {}", r.value())));
    RESHARD_TRY(out.buffers_.bind_rank(r, {buffer->data(), static_cast<std::size_t>(bytes)}));
    out.memory_.push_back(*std::move(buffer));
  }
  return out;
}

Result<> DeviceTensors::copy_from(const RankBuffers& host, const cuda::Stream& stream) const {
  return for_each_tensor(buffers_, host, [&](std::byte* here, std::byte* there, Index bytes) {
    return stream.copy(here, there, bytes);
  });
}

Result<> DeviceTensors::copy_to(const RankBuffers& host, const cuda::Stream& stream) const {
  return for_each_tensor(buffers_, host, [&](std::byte* here, std::byte* there, Index bytes) {
    return stream.copy(there, here, bytes);
  });
}

}  // namespace reshard
