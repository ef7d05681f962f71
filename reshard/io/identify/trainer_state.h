// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace reshard::identify {

/// True for a name that no weight has: of an optimizer's state ("optimizer.state.X.exp_avg",
/// "optim.X.momentum_buffer"), a gradient ("grads.X"), a random state or another state that a
/// trainer keeps, of a module's extra state. Each is known by one part between dots.
bool is_trainer_state(std::string_view name);

}  // namespace reshard::identify
