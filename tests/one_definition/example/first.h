// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace reshard::example {

struct Move {
  int from = 0;
};

}  // namespace reshard::example
