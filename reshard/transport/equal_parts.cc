// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/equal_parts.h"

#include <fmt/format.h>

namespace reshard {

Error wrong_room(std::size_t room, std::size_t ranks, std::size_t bytes) {
  return {Code::invalid_argument,
          fmt::format("all_gather_into: room for {} bytes; {} bytes from each of {} ranks need {}",
                      room, bytes, ranks, ranks * bytes)};
}

Error unequal_part(std::size_t rank, std::size_t bytes, std::size_t mine) {
  return {Code::invalid_argument,
          fmt::format("all_gather_into: rank {} gives {} bytes and this one {}; all ranks give as "
                      "many",
                      rank, bytes, mine)};
}

}  // namespace reshard
