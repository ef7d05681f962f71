// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/convert/model_files.h"
#include "reshard/io/checkpoint/checkpoint.h"

namespace reshard::output {

/// Copies one file into an output folder under another name. Errors, which name the path:
/// unreadable; more than 64 MiB; changed meanwhile.
Result<> copy_file_into(const std::string& path, std::string_view name, const std::string& folder);

/// True if a file of a checkpoint's folder belongs to it: no link, or a link to a file in that
/// folder or, for a snapshot in Hugging Face's cache, to a blob of the same model. Otherwise a
/// checkpoint from elsewhere could have other files of this machine copied.
bool is_of_checkpoint(const std::string& folder, std::string_view name);

/// The names of the files in a checkpoint's folder that say what its weights are.
std::set<std::string> weight_files(const Checkpoint& weights);

struct CompanionChoice {
  /// Files that were read, or are written in another form: neither copied nor left out.
  std::set<std::string> done = {};
  /// The output holds the weights as they were stored: then the files that describe their
  /// quantisation are copied too.
  bool as_stored = false;
};

/// Copies the files that belong to a model besides its weights, of at most 64 MiB each: configs,
/// tokenizer, processors, chat templates (also those in additional_chat_templates/), code, license
/// and model card. Hidden files and indexes of weights belong to the input alone. Returns
/// everything else in the folder, sorted, with the reason why it was not copied.
Result<std::vector<FileLeftOut>> copy_companion_files(const std::string& from,
                                                      const std::string& to,
                                                      const CompanionChoice& choice);

}  // namespace reshard::output
