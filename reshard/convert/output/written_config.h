// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reshard/io/make_layout.h"
#include "reshard/io/open_model.h"

namespace reshard::output {

/// The config.json beside the files of a conversion.
struct WrittenConfig {
  std::optional<std::string> text;  ///< none: the input's, byte for byte.
  std::vector<std::string>
      notes;  ///< what was changed because the files say otherwise, a line each.
};

/// The config that describes what is written: how weights are quantised, if they are, and, of
/// checkpoints that no reshard.json describes (hf, dcp, torch_dist), the dtype in which most of the
/// values are stored. Tensors that are not read, and codes, keep their config as it is. Errors:
/// those of reading the input's config; a form that no config can express.
/// @param as_stored the files hold data and scales as the input's do
Result<WrittenConfig> written_config(const Model& model, const std::string& family,
                                     const LayoutSide& side, bool as_stored);

}  // namespace reshard::output
