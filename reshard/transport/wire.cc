// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/wire.h"

#include <fmt/format.h>

namespace reshard {
namespace {

tl::unexpected<Error> unsupported(const Wire& wire, std::string_view what) {
  return fail(Code::unsupported, fmt::format("{}: no {}", wire.name(), what));
}

}  // namespace

Place Wire::describe_source(Rank, std::span<const std::byte>) { return {}; }
Place Wire::describe_target(Rank, std::span<std::byte>) { return {}; }

Result<> Wire::pull(Rank, std::span<const std::byte>, std::size_t, std::span<std::byte>) {
  return unsupported(*this, "pull");
}
Result<> Wire::put(Rank, std::span<const std::byte>, std::span<const std::byte>, BulkId) {
  return unsupported(*this, "put");
}
Result<MemoryKey> Wire::share(std::span<std::byte>) { return unsupported(*this, "shared memory"); }
Result<PeerMemory> Wire::open(Rank, const MemoryKey&) {
  return unsupported(*this, "shared memory");
}
Result<> Wire::get(const PeerMemory&, std::span<const Get>) { return unsupported(*this, "get"); }

}  // namespace reshard
