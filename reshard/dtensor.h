// SPDX-License-Identifier: Apache-2.0
#pragma once

// Distributed tensors for programs in C++: xferdtensor() between any two meshes and placements, in
// namespace reshard::dtensor. docs/xfer_api.md lists the names; examples/cpp/xfer_tensors.cc is a
// complete program. What this header reaches is public and is installed, as with
// reshard/reshard.h.

#include "reshard/dtensor/transfer.h"

// The groups that transfers need: processes that meet, or threads.
#include "reshard/transport/group.h"
#include "reshard/transport/inproc/inproc.h"
#include "reshard/transport/registry.h"
#include "reshard/transport/rendezvous.h"
