// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "reshard/cuda/tile_table.h"
#include "reshard/program/program.h"

namespace reshard::device {

/// The first byte of a buffer in the memory of a GPU.
using AddressOf = std::function<Result<std::byte*>(const ProgramBuffer&)>;

/// The copies of a program as tiles for a GPU. What a step waits for is in earlier levels, as are
/// the ops before it in its tile. Errors: those of `address`; `unsupported` for a program that
/// needs more than copies between local tensors.
Result<cuda::TileTable> tiles_of(const Program& program, const AddressOf& address);

}  // namespace reshard::device
