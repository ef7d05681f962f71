// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reshard/transport/control.h"

namespace reshard {

/// True for what a proof found, on every rank alike; the group goes on.
inline bool is_verdict(const ControlPlane& control, const Error& error) {
  return error.code == Code::corrupt && control.status().has_value();
}

}  // namespace reshard
