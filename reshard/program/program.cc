// SPDX-License-Identifier: Apache-2.0
#include "reshard/program/program.h"

namespace reshard {

Index Program::bytes() const {
  Index n = 0;
  for (const ProgramStep& step : steps) n += step.bytes;
  return n;
}

Index Program::delivered() const {
  Index n = 0;
  for (const ProgramStep& step : steps) n += step.delivered;
  return n;
}

bool needs_amax(const QuantFormat& format) {
  return format.tensor_factor || (format.block_rows == 0 && format.block_cols == 0);
}

}  // namespace reshard
