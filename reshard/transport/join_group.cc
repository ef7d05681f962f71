// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/group.h"

namespace reshard {

Result<Group> join_group(std::string_view transport, const Join& join_as,
                         const TransportOptions& options) {
  Group group;
  group.control = RESHARD_TRY(join(join_as));
  group.transport = RESHARD_TRY(make_transport(transport, *group.control, options));
  return group;
}

}  // namespace reshard
