// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "reshard/io/files/output_dir.h"

namespace reshard::output {

/// Copies one file into an output folder under another name. Errors, which name the path:
/// unreadable; more than 64 MiB; changed meanwhile.
Result<> copy_file_into(const std::string& path, std::string_view name, OutputDir& folder);

/// True if a file of a checkpoint's folder belongs to it: no link, or a link to a file in that
/// folder or, for a snapshot in Hugging Face's cache, to a blob of the same model. Otherwise a
/// checkpoint from elsewhere could have other files of this machine copied.
bool is_of_checkpoint(const std::string& folder, std::string_view name);

/// Copies the files that belong to a model besides its weights: configs, tokenizer and chat
/// template, of at most 64 MiB each. `but_config`: all but config.json. Returns the names of links
/// that lead outside the checkpoint, which are not copied.
Result<std::vector<std::string>> copy_companion_files(const std::string& from_folder,
                                                      OutputDir& folder, bool but_config);

}  // namespace reshard::output
