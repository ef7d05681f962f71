// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include "reshard/program/compile.h"

namespace reshard {

/// The programs of all ranks of a small model from megatron:tp=2,pp=2 to vllm:tp=2,offset=2, and
/// one of all ranks in one process: each pair of ranks takes another of the three ways.
std::vector<Program> plain_programs();
/// The same for targets that quantise to NVFP4, MXFP8 and FP8 by blocks: rank 0's memory is mapped
/// or it sends messages, all others send messages.
std::vector<Program> converted_programs();

}  // namespace reshard
