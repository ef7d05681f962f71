// SPDX-License-Identifier: Apache-2.0
#include "bench/mpi_ways.h"

namespace reshard::bench {

Result<std::unique_ptr<MpiWays>> MpiWays::make(const RankJob&) {
  return fail(Code::unsupported, "this program has no MPI: take rank_bench_openmpi or _mpich");
}

}  // namespace reshard::bench
