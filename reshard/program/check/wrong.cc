// SPDX-License-Identifier: Apache-2.0
#include "reshard/program/check/wrong.h"

#include <fmt/format.h>

namespace reshard::check {

tl::unexpected<Error> wrong(const Program& program, std::string_view what) {
  return fail(Code::corrupt, fmt::format("program of rank {}: {}", program.rank.value(), what));
}

}  // namespace reshard::check
