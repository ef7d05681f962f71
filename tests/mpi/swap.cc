// SPDX-License-Identifier: Apache-2.0
// Protects: swap_model_weights puts every value in place over `mpi`, and the numeric examples of
// the documents move the bytes that they say, between processes that mpirun started.
#include "reshard/megatron/examples_suite_testutil.h"
#include "reshard/megatron/swap_suite_testutil.h"
#include "tests/mpi/launched_tests.h"

namespace reshard::megatron {
namespace {

const TransportUnderTest kMpi{"mpi", run_launched};
RESHARD_TEST_SWAPS(Mpi, kMpi);
RESHARD_TEST_EXAMPLES(Mpi, kMpi);

}  // namespace
}  // namespace reshard::megatron

int main(int argc, char** argv) { return reshard::run_launched_tests(argc, argv); }
