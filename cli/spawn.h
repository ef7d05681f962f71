// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reshard/base/result.h"

namespace reshard::cli {

/// Starts `count` processes of this program with the arguments of this one, and waits for them.
/// They meet in a temporary folder when `own_rendezvous` (a program that was given none), which is
/// gone afterwards, whatever happened. `first` is the rank of the first process.
///
/// 0 when all of them ended well. Otherwise the error says what happened first: a process that a
/// signal killed, or the reason that a process gave. Once one has failed, the others have ten
/// seconds to end by themselves. An interrupt is passed on; a second one kills. None outlives this.
Result<int> spawn_ranks(int first, int count, bool own_rendezvous);

}  // namespace reshard::cli
