// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/routes/relay_places.h"

#include <fmt/format.h>

#include <map>
#include <span>

#include "reshard/base/check.h"

namespace reshard {

Result<std::shared_ptr<const RelayOptions>> gather_places(const std::string& host,
                                                          ControlPlane& control,
                                                          Deadline deadline) {
  RESHARD_CHECK(host.size() <= kMaxHostName);
  const auto all = RESHARD_TRY(control.all_gather(std::as_bytes(std::span(host)), deadline));
  std::map<std::string, std::int32_t> hosts;  // numbered in the order of their first ranks
  RelayOptions options;
  bool able = true;
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].size() > kMaxHostName)
      return fail(Code::corrupt,
                  fmt::format("the host of rank {} has a name of {} bytes", r, all[r].size()));
    able &= !all[r].empty();
    const std::string name(reinterpret_cast<const char*>(all[r].data()), all[r].size());
    const auto number =
        hosts.try_emplace(name, static_cast<std::int32_t>(hosts.size())).first->second;
    options.places.domain.push_back(number);
    options.places.nic.push_back(number);
  }
  if (!able || hosts.size() < 2) return std::shared_ptr<const RelayOptions>();
  return std::make_shared<const RelayOptions>(std::move(options));
}

}  // namespace reshard
