// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "reshard/io/output_dir.h"

namespace reshard::cli {

/// Copies one file into an output folder under another name. Errors name both paths.
Result<> copy_file_into(const std::string& path, std::string_view name, OutputDir& folder);

/// Copies what belongs to a model but is no weight: config.json and the like, tokenizer and chat
/// template files, of at most 64 MiB each. `but_config`: all but config.json.
Result<> copy_companion_files(const std::string& from_folder, OutputDir& folder, bool but_config);

}  // namespace reshard::cli
