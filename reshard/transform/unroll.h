// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Before a loop of few, known iterations: writes them out, so that arrays indexed by it become
/// registers.
#if defined(__clang__)
#define RESHARD_UNROLL _Pragma("unroll")
#else
#define RESHARD_UNROLL _Pragma("GCC unroll 8")
#endif
