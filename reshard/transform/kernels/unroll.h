// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Before a loop with a small constant number of iterations: unrolls it, so that arrays that it
/// indexes become registers.
#if defined(__clang__)
#define RESHARD_UNROLL _Pragma("unroll")
#else
#define RESHARD_UNROLL _Pragma("GCC unroll 8")
#endif

/// For functions whose constants are to be kept in registers by the loop that calls them.
#define RESHARD_INLINE inline __attribute__((always_inline))
