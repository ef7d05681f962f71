// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/messages/wire.h"

#include <fmt/format.h>

namespace reshard {
namespace {

tl::unexpected<Error> unsupported(const Wire& wire, std::string_view what) {
  return fail(Code::unsupported, fmt::format("{}: no {}", wire.name(), what));
}

}  // namespace

WireAddress Wire::describe_source(Rank, std::span<const std::byte>) { return {}; }
WireAddress Wire::describe_target(Rank, std::span<std::byte>) { return {}; }

Result<> Wire::pull(Rank, std::span<const std::byte>, std::size_t, std::span<std::byte>) {
  return unsupported(*this, "pull");
}
Result<> Wire::put(Rank, std::span<const std::byte>, std::span<const std::byte>, BulkId) {
  return unsupported(*this, "put");
}
Result<RemoteKey> Wire::share(std::span<std::byte>) { return unsupported(*this, "shared memory"); }
Result<RemoteMemory> Wire::open(Rank, const RemoteKey&) {
  return unsupported(*this, "shared memory");
}
Result<> Wire::get(const RemoteMemory&, std::span<const Get>) { return unsupported(*this, "get"); }

}  // namespace reshard
