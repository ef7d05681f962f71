// SPDX-License-Identifier: Apache-2.0
// Protects: the peers of a killed process that use gloo learn of it, name it and live.
#include "tests/transports/module_death_testutil.h"

namespace reshard {
namespace {

TEST(GlooDeath, the_peers_of_a_killed_process_end_and_name_it) { kill_by_seed("gloo", 12); }

}  // namespace
}  // namespace reshard
