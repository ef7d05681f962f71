// SPDX-License-Identifier: Apache-2.0
// Protects: NCCL itself, not its model, keeps the guarantees of every transport, but for those that
// it names. Runs on a real GPU alone (tests/gpu/first_hour.sh), which all ranks share: processes,
// by NCCL_MULTI_RANK_GPU_ENABLE of 2.30 and later.
#include "reshard/gpu_transport/gpu_messages_testutil.h"
#include "reshard/gpu_transport/nccl/guarantees_testutil.h"
#include "reshard/transport/testing/conformance_testutil.h"
#include "tests/transports/module_ranks_testutil.h"

namespace reshard {
namespace {

Result<> run(int n, const RankBody& body) {
  if (nccl::skips_what_nccl_does_not_give()) return {};
  const Setting setting("NCCL_MULTI_RANK_GPU_ENABLE", "1");
  const auto make = [](ControlPlane& control) {
    TransportOptions options;
    options.gpu = std::atoi(std::getenv("RESHARD_TEST_GPU"));
    return make_transport("nccl", control, options);
  };
  return run_ranks_as_processes(n, make, body);
}

const TransportUnderTest kHost{"nccl", run};
const TransportUnderTest kGpu{"nccl", run, gpu_memories};
const TransportUnderTest kHostToGpu{"nccl", run, host_to_gpu_memories};
RESHARD_TEST_MESSAGES(NcclHost, kHost);
RESHARD_TEST_MESSAGES(NcclGpu, kGpu);
RESHARD_TEST_MESSAGES(NcclHostToGpu, kHostToGpu);

}  // namespace
}  // namespace reshard
