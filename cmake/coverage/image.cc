// SPDX-License-Identifier: Apache-2.0
// For `make coverage`: linked into every program and every module, each of which has counters of
// its own.
#include "cmake/coverage/exit.h"

extern "C" void __gcov_dump();  // NOLINT(bugprone-reserved-identifier): its name in libgcov

namespace {

void dump() { __gcov_dump(); }

struct Image {
  Image() { reshard_coverage_add(dump); }
  ~Image() { reshard_coverage_remove(dump); }
};

const Image g_image;

}  // namespace
