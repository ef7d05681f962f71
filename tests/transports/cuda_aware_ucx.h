// SPDX-License-Identifier: Apache-2.0
// A model of a UCX that was built with CUDA, in front of the one that this machine has: functions
// of this program come before those of the library. The memory of the emulated GPU is host memory
// to the real library, so the model says that CUDA memory is supported, checks that every operation
// names the type of its memory, and passes it on without.
#pragma once

#include <cstdlib>

#include "tests/transports/module_ranks_testutil.h"

namespace reshard {

/// True unless RESHARD_TEST_GPU names a real GPU: UCX must then be built with CUDA.
bool models_cuda_aware_ucx();

/// TransportUnderTest::run of ucx with the GPU that RESHARD_TEST_GPU names, or the emulated one.
inline auto ucx_with_gpu(const char* variable = nullptr, const char* value = nullptr) {
  return [=](int n, const RankBody& body) -> Result<> {
    const Setting setting(variable, value);
    const auto make = [](ControlPlane& control) {
      TransportOptions options;
      options.gpu = std::atoi(std::getenv("RESHARD_TEST_GPU"));
      return make_transport("ucx", control, options);
    };
    return run_ranks_as_processes(n, make, body);
  };
}

}  // namespace reshard
