// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/group.h"

namespace reshard {

Result<ProcessGroup> join_group(std::string_view transport, const RendezvousOptions& join_as,
                                const TransportOptions& options) {
  ProcessGroup group;
  group.control = RESHARD_TRY(join(join_as));
  group.transport = RESHARD_TRY(make_transport(transport, *group.control, options));
  return group;
}

}  // namespace reshard
