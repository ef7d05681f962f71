// SPDX-License-Identifier: Apache-2.0
#include "reshard/gpu_transport/nvshmem/staging.h"

#include <fmt/format.h>

#include <algorithm>

namespace reshard::nvshmem {

Result<Staging> Staging::divide(std::size_t bytes, int pes) {
  constexpr std::size_t kMinSlot = 4096;
  const Staging smallest(pes, kMinSlot);
  if (bytes < smallest.total_bytes())
    return fail(Code::invalid_argument,
                fmt::format("nvshmem: {} bytes of staging are too few for {} ranks: they need {}",
                            bytes, pes, smallest.total_bytes()));
  const std::size_t slots = static_cast<std::size_t>(pes) * 2 * kSlots;
  const std::size_t slot = (bytes - smallest.words_area()) / slots / kAlign * kAlign;
  return Staging(pes, std::min(slot, kMaxSegment));
}

}  // namespace reshard::nvshmem
