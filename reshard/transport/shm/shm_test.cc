// SPDX-License-Identifier: Apache-2.0
// Protects: shm keeps the guarantees of every transport with each access method.
#include "reshard/transport/shm/shm.h"

#include "reshard/transport/shm/shm_testutil.h"
#include "reshard/transport/testing/conformance_testutil.h"

namespace reshard {
namespace {

const TransportUnderTest kReadv{"shm", shm_threads("readv")};
const TransportUnderTest kMapped{"shm", shm_threads("mapped,passed")};
const TransportUnderTest kRing{"shm", shm_threads("ring")};
const TransportUnderTest kProcesses{"shm", shm_processes("mapped,readv,ring")};
const TransportUnderTest kRingProcesses{"shm", shm_processes("ring,passed")};
RESHARD_TEST_TRANSPORT(ShmReadv, kReadv);
RESHARD_TEST_TRANSPORT(ShmMapped, kMapped);
RESHARD_TEST_TRANSPORT(ShmRing, kRing);
RESHARD_TEST_TRANSPORT(ShmProcesses, kProcesses);
RESHARD_TEST_TRANSPORT(ShmRingProcesses, kRingProcesses);

}  // namespace
}  // namespace reshard
