// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/host_identity.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <fstream>

namespace reshard {

std::string host_identity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat space{};
  (void)::stat("/proc/self/ns/net", &space);
  std::array<char, 256> name{};
  (void)::gethostname(name.data(), name.size() - 1);
  return fmt::format("{} {} {}", boot, space.st_ino, name.data());
}

}  // namespace reshard
