// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/checks.h"

#include <fmt/format.h>

namespace reshard {

Result<> check_member(std::string_view what, Rank peer, int size) {
  if (peer.value() >= 0 && peer.value() < size) return {};
  return fail(Code::invalid_argument,
              fmt::format("{} rank {}: the group has ranks 0 to {}", what, peer.value(), size - 1));
}

Result<> check_gets(std::span<const Get> pieces, int size) {
  for (const Get& piece : pieces) {
    const RemoteMemory& from = *piece.from;
    RESHARD_TRY(check_member("get from", from.owner, size));
    if (piece.offset > from.size || piece.into.size() > from.size - piece.offset)
      return fail(Code::invalid_argument,
                  fmt::format("get of {} bytes at offset {} of the {} bytes of rank {}",
                              piece.into.size(), piece.offset, from.size, from.owner.value()));
  }
  return {};
}

Error wrong_output_size(std::size_t output_bytes, std::size_t ranks, std::size_t bytes) {
  return {Code::invalid_argument,
          fmt::format("all_gather_into: the output has {} bytes; {} bytes from each of {} ranks "
                      "need {}",
                      output_bytes, bytes, ranks, ranks * bytes)};
}

Error unequal_part(std::size_t rank, std::size_t bytes, std::size_t mine) {
  return {Code::invalid_argument,
          fmt::format("all_gather_into: rank {} gives {} bytes and this rank {}; all ranks must "
                      "give the same number",
                      rank, bytes, mine)};
}

}  // namespace reshard
