// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "cli/run/run_job.h"
#include "reshard/transport/rendezvous.h"

namespace reshard::cli {

/// The settings that all programs of a run must share, named as on the command line, the most
/// telling first: join() reports the first that differs.
std::vector<RendezvousOptions::Setting> common_settings(const RunJob& job);

}  // namespace reshard::cli
