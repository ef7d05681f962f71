// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "cli/run/run_job.h"
#include "reshard/transport/rendezvous.h"

namespace reshard::cli {

/// What all programs of a run must have alike, under the names that the command line gives it, most
/// telling first: join() names the first that differs.
std::vector<RendezvousOptions::Setting> common_settings(const RunJob& job);

}  // namespace reshard::cli
