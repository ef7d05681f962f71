// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace reshard {

/// Exact products of two 64-bit integers.
__extension__ typedef __int128 Int128;
__extension__ typedef unsigned __int128 UInt128;

}  // namespace reshard
