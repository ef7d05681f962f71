// SPDX-License-Identifier: Apache-2.0
#include "reshard/base/result.h"

namespace reshard {

std::string_view name(Code code) {
  switch (code) {
    case Code::invalid_argument: return "invalid_argument";
    case Code::not_found: return "not_found";
    case Code::corrupt: return "corrupt";
    case Code::unsupported: return "unsupported";
    case Code::io: return "io";
    case Code::deadline: return "deadline";
    case Code::aborted: return "aborted";
  }
  return "unknown";
}

Error Error::in(std::string_view context) && {
  std::string text(context);
  text += ": ";
  text += message;
  return Error{code, std::move(text)};
}

}  // namespace reshard
