// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "reshard/index/box.h"

/// The messages about names of a checkpoint that do not fit. A misfit is a stored tensor that
/// nothing asks for. Every reader of checkpoints uses these functions.
namespace reshard {

/// The text after "tensor 'X' is missing": the misfit with the closest name, else the first misfit,
/// else that there is none; and what to do if they are of an adapter that is not merged.
/// `misfits` are in the order of the checkpoint.
std::string instead_of(std::string_view missing, const std::vector<std::string_view>& misfits);

/// "tensor 'X' of shape [2, 3] is not part of the config's architecture", with the number of the
/// other misfits, and what to do about them. X is the first. @pre `misfits` is not empty
std::string not_of_config(const std::vector<std::string_view>& misfits, const Dims& shape);

}  // namespace reshard
