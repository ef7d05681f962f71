// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/convert/model_files.h"
#include "reshard/exec/progress.h"
#include "reshard/index/interval.h"

namespace reshard {

struct ConvertOptions {
  std::string input;   ///< a checkpoint's folder, its index or its only file.
  std::string output;  ///< the folder to write; must not exist.
  std::string to;      ///< the output's layout, as make_layout() takes it.
  /// The input's layout; empty: what the checkpoint says. Another one is an error.
  std::string from = {};
  /// Patterns ('*' any characters, '#' digits) of tensors that the output's layout may lack, or
  /// that the input may have beside those of its config.
  std::set<std::string> ignore = {};
  /// ModelOptions::prefix of the input.
  std::optional<std::string> prefix = {};
  std::vector<std::string> merge = {};    ///< ModelOptions::merge of the input.
  Index buffer_bytes = Index{64} << 20;   ///< most memory for output in flight.
  Index max_shard_bytes = 5'000'000'000;  ///< most tensor bytes in a file of layout hf.
  bool sync = false;                      ///< return only when all data is on the disk.
  int threads = 0;                        ///< 0: one per core that this process may use.
  Progress progress = {};                 ///< bytes of the whole output; returning false cancels.
};

struct ConvertReport {
  Index bytes = 0;                   ///< tensor bytes of the output.
  Index files = 0;                   ///< safetensors files of the output.
  Index ranks = 0;                   ///< of the output's layout; 0 for hf.
  Index kept_files = 0;              ///< files that an earlier, interrupted run had finished,
  Index kept_bytes = 0;              ///< and their tensor bytes.
  std::vector<std::string> ignored;  ///< tensors of the input that are none of the model's.
  std::vector<std::string> omitted;  ///< tensors that the output's layout does not hold.
  std::vector<FileLeftOut> files_left_out;  ///< files of the input that were not copied.
  std::string layout;                       ///< the name of the output's layout.
  /// The notes of a plan (on what was not understood, the layouts' choices, and tensors that change
  /// their form or lose precision), and those on the config that was written.
  std::vector<std::string> notes;
  std::string requantised;   ///< says which tensors lost precision and why; empty if none did.
  double write_seconds = 0;  ///< of reading, converting and writing what was not kept.
  double seconds = 0;        ///< of the whole call.
};

/// Writes a checkpoint in another layout: streams tensor by tensor, so that memory stays bounded,
/// and quantises or dequantises on the way where the layouts ask for it.
///
/// The output appears under its name complete or not at all. An error or a crash leaves the
/// finished files in "OUTPUT.partial"; the same call resumes there. Errors: those of opening and
/// reading the input; an input that changed meanwhile; a layout that cannot hold the model;
/// `output` exists; the disk (full: before anything is written); `aborted` if `progress` cancelled,
/// beginning with "cancelled".
Result<ConvertReport> convert_checkpoint(const ConvertOptions& options);

}  // namespace reshard
