// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "reshard/megatron/centralized_plan.h"
#include "reshard/megatron/copy_service.h"
#include "reshard/megatron/metadata.h"
#include "reshard/megatron/transforms.h"
#include "reshard/plan/reshard_plan.h"

namespace reshard::megatron {

using reshard::TransferOp;

/// One rank's operations of a refit, and what refits keep with them.
struct ReshardPlan {
  std::vector<TransferOp> send_ops, recv_ops;  ///< each by task id; local copies are in both.
  std::shared_ptr<ReshardTransform> transform = nullptr;
  /// Dtypes of the sources' persistent buffers by resolved name, once gathered.
  std::optional<std::map<std::string, DType>> buffer_dtypes = std::nullopt;
  /// Source dtypes of this rank's parameters and buffers that have another dtype here, by this
  /// rank's own name.
  std::map<std::string, DType> converted = {};
};

/// "ReshardPlan(sends=3, recvs=2)"
std::string to_string(const ReshardPlan& plan);

/// Arguments of build_centralized_reshard_plan() besides the modules.
struct PlanArguments {
  std::optional<Index> num_experts = std::nullopt;
  Index src_rank_offset = 0, dst_rank_offset = 0;
  double seconds = 60;
  /// build_centralized_reshard_plan() only: every rank plans for itself, or rank 0 plans for all
  /// and scatters the plans. The operations are the same.
  PlannedBy planned_by = PlannedBy::every_rank;
};

/// This rank's operations, and the planner that made them.
struct BuiltPlan {
  ReshardPlan plan;
  std::shared_ptr<const Planner> planner;
  std::set<std::string> ignore;  ///< canonical tensors that the target lacks.
};

/// Collective over the group. All ranks exchange the metadata of their modules, and every rank
/// makes the same plan. `src_module` is null on a rank that only receives, `dst_module` on one that
/// only sends; a rank with neither is idle, one with both is collocated.
///
/// Errors: those of module_metadata(), which abort the group; those of
/// reshard::build_centralized_reshard_plan(), identical on every rank.
Result<BuiltPlan> build_plan(const RefitGroup& group, Module* src_module, Module* dst_module,
                             const PlanArguments& arguments);

/// The same, but returns only the operations.
Result<ReshardPlan> build_centralized_reshard_plan(const RefitGroup& group, Module* src_module,
                                                   Module* dst_module,
                                                   const PlanArguments& arguments = {});

/// Collective over the group. Submits this rank's operations to the service, runs it, waits for all
/// ranks, and calls the transform, if any, to write what it received. Modules may be null as above;
/// operations of a null module are skipped. Parameters without a transform are written in place as
/// their bytes arrive.
///
/// Errors, which abort the group: the module lacks an operation's parameter; a parameter has
/// another dtype than at the source (only refits by a backend's name convert values) or is kept as
/// MXFP8, and no transform handles it; the transform's; the service's.
Result<> execute_reshard_plan(const ReshardPlan& plan, Module* src_module, Module* dst_module,
                              CopyService& service, const RefitGroup& group,
                              ReshardTransform* transform = nullptr, double seconds = 60);

/// Gives the target's persistent buffers the dtypes of the source's. The first call
/// (plan.buffer_dtypes is empty) is collective: all ranks exchange the dtypes of their sources'
/// buffers, the lowest rank that has a buffer decides, and the plan keeps the result. Later calls
/// are local.
///
/// A buffer of another dtype is replaced on its module: values are converted between BF16, F16 and
/// F32, and are zeros for other dtypes; the tensor dict is invalidated. Returns true if a buffer
/// was replaced. Errors: the control plane's; `corrupt` for an invalid message.
Result<bool> harmonize_buffer_dtypes(ReshardPlan& plan, Module* src_core, Module* tgt_core,
                                     const RefitGroup& group, double seconds = 60);

/// Dtypes of the module's persistent buffers by resolved name; empty for null.
std::map<std::string, DType> persistent_buffer_dtypes(Module* module);

}  // namespace reshard::megatron
