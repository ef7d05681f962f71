// SPDX-License-Identifier: Apache-2.0
// The library of no_library.cc, which the loader is not told where to find.
int absent() { return 7; }
