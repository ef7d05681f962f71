// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/access_checks.h"

#include <fmt/format.h>

namespace reshard {

Result<> check_member(std::string_view what, Rank peer, int size) {
  if (peer.value() >= 0 && peer.value() < size) return {};
  return fail(Code::invalid_argument,
              fmt::format("{} rank {}: the group has ranks 0 to {}", what, peer.value(), size - 1));
}

Result<> check_inside(const RemoteMemory& from, std::span<const Get> pieces) {
  for (const Get& piece : pieces)
    if (piece.offset > from.size || piece.into.size() > from.size - piece.offset)
      return fail(Code::invalid_argument,
                  fmt::format("get of {} bytes at {} from {} bytes of rank {}", piece.into.size(),
                              piece.offset, from.size, from.owner.value()));
  return {};
}

}  // namespace reshard
