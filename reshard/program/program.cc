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

}  // namespace reshard
