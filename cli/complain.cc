// SPDX-License-Identifier: Apache-2.0
#include "cli/complain.h"

#include <cstdio>

namespace reshard::cli {

void complain(std::string message) {
  for (char& c : message)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  std::fprintf(stderr, "reshard: %s\n", message.c_str());
}

}  // namespace reshard::cli
