// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/shm/shm.h"

#include "reshard/transport/shm/wire.h"

namespace reshard {

Result<std::unique_ptr<Transport>> make_shm(ControlPlane& control,
                                            const TransportOptions& options) {
  shm::Peers peers = RESHARD_TRY(shm::meet(control, options.deadline));
  return make_message_engine(std::make_unique<shm::ShmWire>(std::move(peers), control.rank()),
                             control);
}

std::string shm_reason() { return shm::reason_against(); }

}  // namespace reshard
