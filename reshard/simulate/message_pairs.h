// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/program/program.h"

namespace reshard::simulate {

/// One message, as its sender and its receiver see it.
struct MessagePair {
  struct Side {
    std::uint32_t program = 0, step = 0;
  };
  Rank from, to;
  Index bytes = 0;
  Side sender, receiver;
};

/// Pairs the messages of all ranks: the n-th that one sends with an id and the n-th that the other
/// receives with it. Errors: a message that only one side has, or whose sizes differ.
/// @pre program i is that of rank i
Result<std::vector<MessagePair>> pair_messages(std::span<const Program> programs);

}  // namespace reshard::simulate
