// SPDX-License-Identifier: Apache-2.0
#pragma once

// The one header that a program includes. What it reaches is the public interface and is installed;
// all other headers are internal. examples/cpp/ has complete programs.

// Models and layouts: open_model("qwen3-30b-a3b"), make_layout("megatron:tp=4,ep=8", model).
#include "reshard/io/make_layout.h"
#include "reshard/io/open_model.h"
#include "reshard/model/families.h"
#include "reshard/model/families/rules.h"
#include "reshard/model/layout_diff.h"
#include "reshard/model/place_layouts.h"

// The plan between two layouts, its cost and its text.
#include "reshard/plan/planner.h"
#include "reshard/plan/print.h"
#include "reshard/plan/summary.h"

// All ranks in one process: memory, the refit, fingerprints of both sides.
#include "reshard/exec/in_process.h"
#include "reshard/exec/rank_buffers.h"
#include "reshard/exec/verify/fingerprints.h"

// All ranks on one GPU: memory, and the refit on a stream.
#include "reshard/exec/device/device_tensors.h"

// Ranks that are processes or threads: a group, and the session that it holds between steps.
#include "reshard/refit/device_refit.h"
#include "reshard/refit/session.h"
#include "reshard/transport/group.h"
#include "reshard/transport/inproc/inproc.h"
#include "reshard/transport/registry.h"
#include "reshard/transport/rendezvous.h"

// Members of a fleet, which come and go, and the server that says who refits from whom.
#include "reshard/fleet/fleet_member.h"
#include "reshard/fleet/fleet_server.h"

// Checkpoints at rest: convert_checkpoint(), verify_checkpoints(), load_weights(), make_delta().
#include "reshard/convert/convert.h"
#include "reshard/convert/delta.h"
#include "reshard/convert/load_weights.h"
#include "reshard/convert/synthesize.h"
#include "reshard/convert/verify.h"

// Quantisation of one matrix in memory.
#include "reshard/transform/quantise.h"
