// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace reshard::example {

class Move {
 public:
  double bytes() const { return bytes_; }

 private:
  double bytes_ = 0;
};

}  // namespace reshard::example
