// SPDX-License-Identifier: Apache-2.0
// Protects: when a process is killed, its peers over gloo survive and name it.
#include "tests/transports/module_death_testutil.h"

namespace reshard {
namespace {

TEST(GlooDeath, the_peers_of_a_killed_process_end_and_name_it) { kill_by_seed("gloo", 12); }

}  // namespace
}  // namespace reshard
