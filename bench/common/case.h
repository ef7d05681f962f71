// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "bench/common/arguments.h"
#include "reshard/model/config.h"
#include "reshard/model/model_layout.h"

namespace reshard::bench {

/// A model and two layouts of it.
struct Case {
  std::shared_ptr<const ModelLayout> source, target;
};

/// The config that `--config` names, with `--layers` and `--vocab` in place of its own where they
/// are given. Errors: those of reading it.
Result<ModelConfig> config_of(Arguments& arguments);

/// A layout of one of the families that need nothing but a config. Errors: another family; the
/// family's.
Result<std::shared_ptr<const ModelLayout>> layout_of(const std::string& text,
                                                     const ModelConfig& config,
                                                     std::shared_ptr<const ModelSpec> model);

/// The case of a command line. Either a model by its config and two layouts,
///   --config FILE [--layers N] [--vocab N] --from LAYOUT --to LAYOUT
/// or copies of one tensor, each cut along one dimension into parts that ranks 0, 1, ... hold,
///   --tensor 2048x768 --count N --dtype BF16 --from DIM:PARTS[:OFFSET] --to ...
Result<Case> case_of(Arguments& arguments);

}  // namespace reshard::bench
