// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "reshard/base/result.h"
#include "reshard/io/open_model.h"
#include "reshard/model/families/explicit.h"
#include "reshard/model/layout_spec.h"

/// Layouts "traced:ENGINE,key=value": learned from an engine's own loader, in a process of the
/// Python that has the engine. docs/tracing.md describes them.
namespace reshard {

struct TracedLayout {
  /// The notation that reads it again without the engine: "explicit:explicit.json", with quant keys
  /// if the engine's weights are quantised, and the offset.
  LayoutSpec notation;
  std::string text;       ///< of that file.
  ExplicitLayout layout;  ///< the same, parsed.
};

/// Traces how an engine loads the model, or takes what was kept of an earlier trace. Waits for the
/// process, at most $RESHARD_TRACING_SECONDS (1800). Errors: a model without a config.json; an
/// engine that is not known; no Python with reshard and the engine; the engine's refusal.
Result<TracedLayout> trace_layout(const LayoutSpec& spec, const Model& model);

/// The Python that traces if $RESHARD_PYTHON is empty; "python3" otherwise. Any thread.
void set_tracing_python(std::string program);

/// The notation of the same engine, such as "traced:vllm,tp=4", for a family that has no layout of
/// a model; empty if no engine of the family can be traced.
std::string traced_instead_of(const LayoutSpec& spec);

}  // namespace reshard
