// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "reshard/program/compile.h"
#include "reshard/program/form/describe.h"
#include "reshard/refit/conversion/routes.h"

namespace reshard {

/// The options that the programs of a session are compiled for, as in SessionOptions.
struct SessionProgramOptions {
  std::set<std::string> ignore;     ///< canonical names of tensors that one side may lack.
  std::set<std::string> only = {};  ///< canonical names of the tensors to move; empty: all.
  ConversionSide convert = ConversionSide::receiver;
  std::shared_ptr<const RelayOptions> relays = nullptr;  ///< the places of ranks that may relay.
  Index staging_bytes = Index{64} << 20;                 ///< at least 32 KiB.
  Index in_place_bytes = Index{64} << 10;
};

/// One of the programs that a rank of a session runs, one after the other, in each refit.
struct SessionProgram {
  Route route = Route::plain;  ///< of its tensors.
  Program program;
  /// The layouts of the memory that the program's buffers are in: a side of the session, or the
  /// whole matrices between two programs.
  std::shared_ptr<const ModelLayout> source, target;
  ProgramLayouts layouts() const { return {source.get(), target.get()}; }
};

/// The programs of one rank of a session between these sides, without its memory and without a
/// group: `way` says how ranks reach each other. Memory of the sides is not looked at. Errors:
/// those of the planner, of find_routes() and of compile_rank().
Result<std::vector<SessionProgram>> session_programs(const SessionSide& source,
                                                     const SessionSide& target, Rank rank,
                                                     const WayBetween& way,
                                                     const SessionProgramOptions& options = {});

}  // namespace reshard
