// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "reshard/base/result.h"

namespace reshard {

/// A file or folder beside a checkpoint's weights that was not copied.
struct FileLeftOut {
  std::string name;  ///< in the checkpoint's folder; of a folder it ends in a slash.
  std::string why;
  friend bool operator==(const FileLeftOut&, const FileLeftOut&) = default;
};

/// "left out optimizer.pt, pytorch_model.bin: WHY", a line for each reason; empty if there is none.
std::string text_of(const std::vector<FileLeftOut>& files);

/// Copies into the folder `to` the files that belong to a model besides its weights: config,
/// tokenizer, processors, chat templates, code, license and model card. `from`: the folder of a
/// model, or a config under any name, which alone is copied, as config.json. `as_stored`: the
/// weights are written in the form that they have there; otherwise they are plain, and what
/// describes their quantisation is left out, also of the config. Returns what else the folder
/// holds, except the weights that it lists, and why it was not copied. Errors, which name the path:
/// unreadable; more than 64 MiB; the disk.
Result<std::vector<FileLeftOut>> copy_model_files(const std::string& from, const std::string& to,
                                                  bool as_stored);

}  // namespace reshard
