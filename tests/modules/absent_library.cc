// SPDX-License-Identifier: Apache-2.0
// The library that no_library.cc needs, in a folder that the loader does not search.
int absent() { return 7; }
