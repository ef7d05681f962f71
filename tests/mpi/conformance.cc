// SPDX-License-Identifier: Apache-2.0
// Protects: the transport `mpi` keeps the guarantees of every transport, between processes that
// mpirun started.
#include "reshard/transport/testing/conformance_testutil.h"
#include "tests/mpi/launched_tests.h"

namespace reshard {
namespace {

const TransportUnderTest kMpi{"mpi", run_launched};
RESHARD_TEST_TRANSPORT(Mpi, kMpi);

}  // namespace
}  // namespace reshard

int main(int argc, char** argv) { return reshard::run_launched_tests(argc, argv); }
