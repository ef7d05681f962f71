// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <utility>

#include "reshard/base/result.h"
#include "reshard/program/program.h"

namespace reshard::check {

/// Code::corrupt, with the rank of the program and what is wrong with it.
template <class... Args>
tl::unexpected<Error> wrong(const Program& program, fmt::format_string<Args...> format,
                            Args&&... args) {
  return fail(Code::corrupt, fmt::format("program of rank {}: {}", program.rank.value(),
                                         fmt::format(format, std::forward<Args>(args)...)));
}

}  // namespace reshard::check
