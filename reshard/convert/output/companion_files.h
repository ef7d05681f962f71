// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "reshard/io/files/output_dir.h"

namespace reshard::output {

/// Copies one file into an output folder under another name. Errors name the path: it cannot be
/// read, has more than 64 MiB, or changes meanwhile.
Result<> copy_file_into(const std::string& path, std::string_view name, OutputDir& folder);

/// Whether a file of a checkpoint's folder is its own: no link, or one to a file in that folder or,
/// for a snapshot in Hugging Face's cache, among the blobs of the same model. A checkpoint that
/// somebody else made must not have files of this machine copied that only look like its own.
bool is_of_checkpoint(const std::string& folder, std::string_view name);

/// Copies what belongs to a model but is no weight: config.json and the like, tokenizer and chat
/// template files, of at most 64 MiB each. `but_config`: all but config.json. Returns the names of
/// those that are left out because they are links to files of others.
Result<std::vector<std::string>> copy_companion_files(const std::string& from_folder,
                                                      OutputDir& folder, bool but_config);

}  // namespace reshard::output
