// SPDX-License-Identifier: Apache-2.0
#pragma once

// Megatron-Core's refit for programs in C++: its functions by their names, in namespace
// reshard::megatron. docs/megatron_api.md lists them; examples/cpp/megatron_swap.cc is a complete
// program. What this header reaches is public and is installed, as with reshard/reshard.h.

// core.resharding.refit: swap_model_weights(trainer, engine, "shm", arguments, context).
#include "reshard/megatron/refit.h"

// core.resharding.utils: models as trees of modules, and what is known of each parameter.
#include "reshard/megatron/metadata.h"
#include "reshard/megatron/module.h"
#include "reshard/megatron/reshard_plan.h"
#include "reshard/megatron/tensor_view.h"

// core.resharding.transforms and core.resharding.planner.
#include "reshard/megatron/centralized_plan.h"
#include "reshard/megatron/mxfp8_tensor.h"
#include "reshard/megatron/mxfp8_transform.h"
#include "reshard/megatron/parameter_planning.h"
#include "reshard/megatron/transforms.h"

// Copies between ranks, and the groups that they need: processes that meet, or threads.
#include "reshard/megatron/copy_service.h"
#include "reshard/transport/group.h"
#include "reshard/transport/inproc/inproc.h"
#include "reshard/transport/registry.h"
#include "reshard/transport/rendezvous.h"
