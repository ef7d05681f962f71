// SPDX-License-Identifier: Apache-2.0
// Runs ranks that use the module of a transport as programs do.
#pragma once

#include <stdlib.h>

#include <functional>
#include <string>

#include "reshard/transport/group.h"
#include "reshard/transport/testing/conformance_ranks_testutil.h"
#include "reshard/transport/testing/rank_processes_testutil.h"

namespace reshard {

/// Sets an environment variable while it lives; without a value, leaves it unchanged.
class Setting {
 public:
  Setting(const char* name, const char* value) : name_(value != nullptr ? name : nullptr) {
    if (name_ != nullptr) setenv(name_, value, 1);
  }
  ~Setting() {
    if (name_ != nullptr) unsetenv(name_);
  }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

 private:
  const char* name_;
};

/// TransportUnderTest::run of a module with ranks as processes, with a variable set, or none.
inline auto module_processes(std::string transport, const char* variable = nullptr,
                             const char* value = nullptr, ProcessOptions options = {}) {
  return [=](int n, const RankBody& body) -> Result<> {
    const Setting setting(variable, value);
    const auto make = [&](ControlPlane& control) { return make_transport(transport, control); };
    return run_ranks_as_processes(n, make, body, options);
  };
}

/// The same with ranks as threads.
inline auto module_threads(std::string transport, const char* variable = nullptr,
                           const char* value = nullptr) {
  return [=](int n, const RankBody& body) -> Result<> {
    const Setting setting(variable, value);
    const auto make = [&](ControlPlane& control) { return make_transport(transport, control); };
    return run_joined_threads(n, make, body);
  };
}

}  // namespace reshard
