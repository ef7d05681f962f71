// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reshard/io/open_model.h"

namespace reshard::identify {

/// Finds the model among the tensors of a checkpoint in pieces and names them as its config does.
/// They lie below one prefix ("model.", "app.model."), which is taken off, as are the parts of
/// names that wrappers add (without_wrappers()). The other tensors become entries of
/// pieces().others. With ModelOptions::prefix that prefix counts; with an empty one, and without a
/// config that reshard understands, names stay as they are.
///
/// Errors: the model is there more than once; a tensor outside of the prefix that has the name and
/// shape of one inside; two tensors that differ have one name without wrappers; no name begins with
/// ModelOptions::prefix; no tensor but an optimizer's. @pre weights.kind() == Checkpoint::Kind::dcp
Result<> take_names(Checkpoint& weights, const ModelOptions& options);

/// Refuses tensors that reshard cannot read, unless they are known to be no weights or `ignore`
/// names them. @pre weights.kind() == Checkpoint::Kind::dcp
Result<> check_unread(const Checkpoint& weights, const std::set<std::string>& ignore);

}  // namespace reshard::identify
