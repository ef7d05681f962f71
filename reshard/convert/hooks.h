// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string_view>

#include "reshard/convert/convert.h"
#include "reshard/convert/synthesize.h"
#include "reshard/convert/verify.h"

/// The same operations with hooks, for the program's own tests of files that change under it.
namespace reshard {

/// Called at these points: "start", the input is open and none of its tensors is read; "piece", a
/// piece of output is written; "file", a file of it is finished; "files", all are; "end", the
/// output folder is about to get its name.
using ConvertHook = std::function<void(std::string_view point)>;

Result<ConvertReport> convert_checkpoint(const ConvertOptions& options, const ConvertHook& hook);
Result<VerifyReport> verify_checkpoints(const VerifyOptions& options, const ConvertHook& hook);
Result<SynthesizeReport> synthesize_checkpoint(const SynthesizeOptions& options,
                                               const ConvertHook& hook);

}  // namespace reshard
