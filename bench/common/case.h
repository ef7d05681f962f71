// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "bench/common/arguments.h"
#include "reshard/io/open_model.h"
#include "reshard/model/model_layout.h"

namespace reshard::bench {

/// A model and two layouts of it.
struct Case {
  std::shared_ptr<const ModelLayout> source, target;
};

/// The model that `--config` names (a config file or an example), with `--layers` and `--vocab` in
/// place of its own sizes where they are given. Errors: those of open_model().
Result<Model> model_of(Arguments& arguments);

/// The case of a command line: either a model and two layouts of it,
///   --config FILE [--layers N] [--vocab N] --from LAYOUT --to LAYOUT
/// or copies of one tensor, each cut along one dimension into one part per rank,
///   --tensor 2048x768 --count N --dtype BF16 --from DIM:PARTS[:OFFSET] --to ...
Result<Case> case_of(Arguments& arguments);

}  // namespace reshard::bench
