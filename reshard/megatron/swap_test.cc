// SPDX-License-Identifier: Apache-2.0
// Protects: swap_model_weights puts every value in place between all layouts of Megatron-Core's own
// tests, and the documents' numeric examples move the bytes they should, with ranks as threads and
// as processes.
#include "reshard/megatron/examples_suite_testutil.h"
#include "reshard/megatron/swap_suite_testutil.h"
#include "reshard/transport/group.h"
#include "reshard/transport/inproc/inproc.h"
#include "reshard/transport/testing/rank_processes_testutil.h"

namespace reshard::megatron {
namespace {

const TransportUnderTest kInproc{"inproc", run_group_as_threads<InprocGroup>};
RESHARD_TEST_SWAPS(Inproc, kInproc);
RESHARD_TEST_EXAMPLES(Inproc, kInproc);

const TransportUnderTest kShm{"shm", [](int n, const RankBody& body) {
                                return run_ranks_as_processes(
                                    n, [](ControlPlane& c) { return make_transport("shm", c); },
                                    body);
                              }};
RESHARD_TEST_SWAPS(ShmProcesses, kShm);
RESHARD_TEST_EXAMPLES(ShmProcesses, kShm);

}  // namespace
}  // namespace reshard::megatron
