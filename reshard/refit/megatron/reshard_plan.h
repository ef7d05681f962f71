// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "reshard/exec/centralized_plan.h"
#include "reshard/plan/reshard_plan.h"
#include "reshard/refit/megatron/copy_service.h"
#include "reshard/refit/megatron/metadata.h"
#include "reshard/refit/megatron/transforms.h"

namespace reshard::megatron {

using reshard::TransferOp;

/// One rank's operations of a refit, and what is kept with them.
struct ReshardPlan {
  std::vector<TransferOp> send_ops, recv_ops;  ///< each by task id; local copies stand in both.
  std::shared_ptr<ReshardTransform> transform = nullptr;
  /// Dtypes of the sources' persistent buffers by resolved name, once they were gathered.
  std::optional<std::map<std::string, DType>> buffer_dtypes = std::nullopt;
  /// Parameters and buffers of this rank that the source has in another dtype, by own name.
  std::map<std::string, DType> converted = {};
};

/// "ReshardPlan(sends=3, recvs=2)"
std::string to_string(const ReshardPlan& plan);

/// What build_centralized_reshard_plan() is told beside the modules.
struct PlanArguments {
  std::optional<Index> num_experts = std::nullopt;
  Index src_rank_offset = 0, dst_rank_offset = 0;
  double seconds = 60;
  /// Of build_centralized_reshard_plan(): every rank for itself, or rank 0 for all, which it then
  /// scatters to. The operations are the same.
  PlannedBy planned_by = PlannedBy::every_rank;
};

/// This rank's operations, and the planner that they come from.
struct BuiltPlan {
  ReshardPlan plan;
  std::shared_ptr<const Planner> planner;
  std::set<std::string> ignore;  ///< canonical tensors that the target does without.
};

/// Collective over the group. All ranks tell what their modules have, and every rank plans for
/// itself, alike. `src_module` is null on a rank without source model (it only receives),
/// `dst_module` on one without destination model (it only sends); a rank with neither is idle, one
/// with both is collocated.
///
/// Errors: a module without pg_collection and the other errors of module_metadata(), which abort
/// the group; those of reshard::build_centralized_reshard_plan(), the same on every rank.
Result<BuiltPlan> build_plan(const RefitGroup& group, Module* src_module, Module* dst_module,
                             const PlanArguments& arguments);

/// The operations alone.
Result<ReshardPlan> build_centralized_reshard_plan(const RefitGroup& group, Module* src_module,
                                                   Module* dst_module,
                                                   const PlanArguments& arguments = {});

/// Collective over the group. Submits this rank's operations to the service, runs it, waits for all
/// ranks, and lets the transform, where one is given and takes a parameter, write what it got.
/// Modules may be null as above; operations of a null module are left out. Destinations in place
/// are written as their bytes arrive.
///
/// Errors, which end the group: an operation whose parameter the module does not have; a parameter
/// of another dtype than the source's (values are converted where a refit goes by a backend's
/// name), or kept as MXFP8, that no transform takes; the transform's; the service's.
Result<> execute_reshard_plan(const ReshardPlan& plan, Module* src_module, Module* dst_module,
                              CopyService& service, const RefitGroup& group,
                              ReshardTransform* transform = nullptr, double seconds = 60);

/// Brings the persistent buffers of the target to the dtypes that the source has them in. The first
/// time (plan.buffer_dtypes is empty) it is collective: all ranks tell what their sources have, the
/// lowest rank that has a buffer decides, and the plan keeps it. Later it only looks.
///
/// A buffer of another dtype is replaced on its module, its values converted between BF16, F16 and
/// F32 and zeros otherwise, and the tensor dict is invalidated. True where one was. Errors: the
/// control plane's, `corrupt` for what no rank sends.
Result<bool> harmonize_buffer_dtypes(ReshardPlan& plan, Module* src_core, Module* tgt_core,
                                     const RefitGroup& group, double seconds = 60);

/// Dtypes of the module's persistent buffers by resolved name; empty of null.
std::map<std::string, DType> persistent_buffer_dtypes(Module* module);

}  // namespace reshard::megatron
