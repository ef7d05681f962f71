// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "reshard/base/result.h"
#include "reshard/exec/progress.h"
#include "reshard/io/open_model.h"

namespace reshard {

struct SynthesizeOptions {
  std::string config;  ///< a config.json or a named example, as open_model() takes it.
  std::string output;  ///< the folder to write; must not exist.
  std::optional<Index> layers = {};       ///< instead of the config's number.
  std::uint64_t seed = 0;                 ///< of the values.
  Index max_shard_bytes = 5'000'000'000;  ///< most tensor bytes in a file.
  int threads = 0;                        ///< 0: one per core that this process may use.
  Progress progress = {};                 ///< bytes of the whole output; returning false cancels.
};

struct SynthesizeReport {
  Model model;
  Index bytes = 0;       ///< tensor bytes of the output.
  Index files = 0;       ///< safetensors files of the output.
  Index kept_bytes = 0;  ///< tensor bytes of files that an earlier, interrupted run had finished.
  double seconds = 0;
};

/// Writes a Hugging Face checkpoint of a config's structure with the oracle's values: finite, and
/// computed from seed, name and position. Resumes as convert_checkpoint() does. Errors: those of
/// open_model(); a checkpoint instead of a config; `output` exists; the disk; cancelled.
Result<SynthesizeReport> synthesize_checkpoint(const SynthesizeOptions& options);

}  // namespace reshard
