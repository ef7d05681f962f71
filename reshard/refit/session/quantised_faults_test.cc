// SPDX-License-Identifier: Apache-2.0
// Protects: a failure while quantised weights are refitted leaves whole or torn versions, and a
// changed byte is detected, between threads and between processes.
#include "reshard/refit/session/quantised_faults_suite_testutil.h"
#include "reshard/transport/inproc/inproc.h"
#include "reshard/transport/shm/shm_testutil.h"

namespace reshard::quantised {
namespace {

const TransportUnderTest kInproc{"inproc", run_group_as_threads<InprocGroup>};
RESHARD_TEST_QUANTISED_FAULTS(Inproc, kInproc);

const TransportUnderTest kShm{"shm", shm_processes("mapped,readv,ring")};
RESHARD_TEST_QUANTISED_FAULTS(ShmProcesses, kShm);

}  // namespace
}  // namespace reshard::quantised
