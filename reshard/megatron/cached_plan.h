// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "reshard/megatron/refit.h"

namespace reshard::megatron {

/// A session over one backend, and the memory that it was prepared for.
struct SessionBinding {
  std::shared_ptr<CopyService> service;  ///< owns the transport.
  std::uint64_t addresses = 0;           ///< digest of this rank's addresses.
  std::unique_ptr<RankBuffers> source, target;
  std::optional<Session> session;
  std::int64_t version = 0;
};

/// A plan, its planner, and the sessions that run it.
struct CachedPlan {
  ReshardPlan plan;
  std::shared_ptr<const Planner> planner;
  std::set<std::string> ignore;
  /// digest_of_buffer_dtypes() of this rank's source when planned, and of its target when its
  /// buffers last had the source's dtypes.
  std::uint64_t source_dtypes = 0, target_dtypes = 0;
  std::map<std::string, std::unique_ptr<SessionBinding>> sessions;  ///< by backend.
};

/// Digest of the addresses of all tensors of both models.
std::uint64_t digest_of_addresses(const ModelCores& cores);

/// Digest of the dtypes of a model's persistent buffers, as its modules have them now; null: of
/// none.
std::uint64_t digest_of_buffer_dtypes(Module* module);

/// Collective. Binds the models' memory and prepares a session. Errors: those of
/// Session::prepare().
Result<std::unique_ptr<SessionBinding>> bind_session(const CachedPlan& cached,
                                                     const ModelCores& cores,
                                                     std::shared_ptr<CopyService> service,
                                                     const RefitGroup& group,
                                                     const RankRefitOptions& options);

/// The record that each rank sends to all others before a call.
struct CallRecord {
  enum class Has : std::uint8_t {
    nothing,  ///< no plan for these models.
    plan,     ///< a plan, but no session over the backend and this memory.
    all,      ///< both.
  };
  Has has = Has::nothing;
  bool by_operations = false;  ///< a transform or an MXFP8 tensor requires the plan's operations.
  bool service = false;        ///< has the backend's service.
  std::uint64_t staging_bytes = 0;  ///< the most that a new service may use.
  std::uint64_t planner = 0;        ///< digest of its plan.
  std::string call = {};     ///< the call, with the arguments that must be equal on all ranks.
  std::string trouble = {};  ///< why this rank cannot take part; "" if it can.
  Code code = Code::invalid_argument;  ///< of the trouble.

  void fail_with(const Error& error) {
    trouble = error.message;
    code = error.code;
  }
};

/// Collective. Combines all ranks' records: the least `has` and staging; by_operations if any rank
/// requires it; service if all have it. Errors, identical on all ranks: ranks make different calls
/// (named); a rank's trouble.
Result<CallRecord> agree(const CallRecord& mine, ControlPlane& control, double seconds);

}  // namespace reshard::megatron
