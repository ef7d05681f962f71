// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/group.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/transport/built_modules.h"
#include "reshard/transport/module.h"
#include "reshard/transport/registry.h"
#include "reshard/transport/shm/host_memory.h"
#include "reshard/transport/shm/shm.h"

namespace reshard {
namespace {

/// A transport that has no module: the words for why it cannot be made this way.
tl::unexpected<Error> cannot_make(std::string_view name) {
  if (name == "inproc") {
    return fail(Code::unsupported,
                "transport inproc: its ranks are threads of one process, made by InprocGroup; "
                "between processes take another");
  }
  const std::optional<TransportInfo> row = find_transport(name);
  if (row) return fail(Code::unsupported, fmt::format("transport {}: {}", name, row->reason));
  return fail(Code::invalid_argument,
              fmt::format("transport {}: there is none of this name; known: {}", name,
                          fmt::join(transport_names(), ", ")));
}

bool has_module(std::string_view name) {
  return std::ranges::any_of(built_modules(),
                             [&](const BuiltModule& m) { return m.transport == name; });
}

}  // namespace

Result<std::unique_ptr<Transport>> make_transport(std::string_view name, ControlPlane& control,
                                                  const TransportOptions& options) {
  if (name == "shm") return make_shm(control, options);
  if (!has_module(name)) return cannot_make(name);
  const std::string where = fmt::format("transport {}", name);
  Result<const TransportModule*> module = load_module(name);
  if (!module) return tl::unexpected(std::move(module).error().in(where));
  if (std::string reason = (*module)->reason(); !reason.empty())
    return tl::unexpected(Error{Code::unsupported, std::move(reason)}.in(where));
  std::unique_ptr<Transport> made = RESHARD_TRY((*module)->make(control, options));
  if (!(*module)->host_memory) return made;
  return with_host_memory(std::move(made), control, options.deadline);
}

}  // namespace reshard
