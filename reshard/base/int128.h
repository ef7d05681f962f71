// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace reshard {

/// For exact products of 64-bit integers.
__extension__ typedef __int128 Int128;
__extension__ typedef unsigned __int128 UInt128;

}  // namespace reshard
