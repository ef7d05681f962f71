// SPDX-License-Identifier: Apache-2.0
#include "reshard/transform/transform_testutil.h"

#include "reshard/base/hash.h"

namespace reshard {

std::vector<KernelChoice> kernel_choices() {
  std::vector<KernelChoice> choices;
  for (const SimdLevel level : available_simd_levels())
    for (bool in_order : {false, true}) choices.push_back({level, in_order});
  return choices;
}

std::vector<std::byte> random_bytes(Index size, std::uint64_t seed) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(mix64(mix64(seed) + i) & 0xff);
  return bytes;
}

}  // namespace reshard
