// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "reshard/base/result.h"
#include "reshard/simulate/cluster.h"

namespace reshard {

/// A cluster from the text of a JSON file (docs/simulation.md has the keys). Errors are
/// Code::corrupt and name the key and what would be right, but not the file.
Result<ClusterSpec> parse_cluster(std::string_view text);

/// The cluster of a file or, if no file has that name, of an example (example_configs.h). Errors
/// name the file.
Result<ClusterSpec> read_cluster(const std::string& text);

/// The text of a file that parse_cluster() reads back as an equal cluster.
/// @pre check_cluster(cluster) passes
std::string cluster_text(const ClusterSpec& cluster);

}  // namespace reshard
