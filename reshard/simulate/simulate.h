// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "reshard/program/program.h"
#include "reshard/simulate/cluster.h"
#include "reshard/simulate/traffic.h"

/// Predicts how long a refit takes on a cluster that need not exist. Everything that moves shares
/// the resources that it uses (cores, memory, NVLink, PCIe, NICs, uplinks) in max-min fair parts;
/// see docs/simulation.md for what is left out. Deterministic: no clock, no random numbers.
namespace reshard {

/// When one rank was where. Seconds since all ranks began.
struct RankSeconds {
  Rank rank;         ///< -1: all ranks of one process.
  double first = 0;  ///< its first bytes have arrived or left; 0 if it moves none.
  double moved = 0;  ///< its last bytes have; the rest of the time it waits for others.
};

struct Simulation {
  double predicted_seconds = 0;  ///< until every rank is done.
  /// A bound that no order of the same work can beat: the time that the busiest resource needs.
  double bound_seconds = 0;
  std::string bound_by;  ///< that resource, such as "NIC 3 of host 2, sending".
  std::string
      busiest_link;       ///< the busiest of NVLink, PCIe, NICs and uplinks; empty if none is used.
  double link_bytes = 0;  ///< over the busiest link.
  double link_use = 0;    ///< its bytes over those that it could carry in predicted_seconds.
  std::vector<RankSeconds> ranks;
};

/// Simulates traffic whose order is not known: all pairs begin at once. With thousands of pairs,
/// what becomes free is given to others up to 2 % of bound_seconds late. Errors: check_cluster(),
/// check_places().
Result<Simulation> simulate_traffic(const ClusterSpec& cluster, const ClusterTraffic& traffic);

/// Simulates the programs of all ranks of a group, step by step as an executor runs them: each rank
/// has ClusterSpec::Copies::cores_per_rank threads for its tiles, which begin in order of their
/// numbers; its exchanges begin in order. Or one program of all ranks (Program::rank is -1) on one
/// host, with all its cores. Cost: steps and messages, times what is in progress at once.
/// Errors: check_cluster(), check_places(); programs that lack a rank; a message that is received
/// and not sent, or the reverse, or whose sides have different sizes; steps that wait for each
/// other.
/// @pre each program passes check_program()
Result<Simulation> simulate_programs(const ClusterSpec& cluster, std::span<const Program> programs);

}  // namespace reshard
