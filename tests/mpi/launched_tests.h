// SPDX-License-Identifier: Apache-2.0
// GoogleTest in processes that one launcher started: all run the same tests in the same order, and
// failures of any process are reported with its rank.
#pragma once

#include <string>

#include "reshard/base/result.h"
#include "reshard/transport/group.h"
#include "reshard/transport/testing/conformance_ranks_testutil.h"

namespace reshard {

/// Runs `body` on the first `n` processes, as a group of the transport `mpi` that joined in a
/// folder; the others return at once. Every process calls it in the same order. A body that closes
/// its ends early may do so.
Result<> run_launched(int n, const RankBody& body);
/// The same with options for the transport.
Result<> run_launched_with(const TransportOptions& options, int n, const RankBody& body);

/// The rank of this process in the launch, and in every group that it is a member of.
/// @pre inside run_launched_tests()
int launched_rank();

/// In place of main(): starts all processes of the launcher, runs the tests that were named, and
/// returns the exit code, the same for all: 1 when any test failed in any process.
int run_launched_tests(int argc, char** argv);

}  // namespace reshard
