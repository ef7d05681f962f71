// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "reshard/refit/megatron/refit.h"

namespace reshard::megatron {

/// A session over one backend, and the memory that it was prepared with.
struct SessionBinding {
  std::shared_ptr<CopyService> service;  ///< has the transport.
  std::uint64_t addresses = 0;           ///< digest of this rank's.
  std::unique_ptr<RankBuffers> source, target;
  std::optional<Session> session;
  std::int64_t version = 0;
};

/// A plan, the planner behind it, and sessions that run it.
struct CachedPlan {
  ReshardPlan plan;
  std::shared_ptr<const Planner> planner;
  std::set<std::string> ignore;
  std::map<std::string, DType> source_dtypes;  ///< of this rank's source buffers, as planned.
  std::map<std::string, std::unique_ptr<SessionBinding>> sessions;  ///< by backend.
};

/// Of the addresses of all tensors of both models.
std::uint64_t digest_of_addresses(const ModelCores& cores);

/// Collective. Binds the models' memory and prepares a session. Errors: Session::prepare()'s.
Result<std::unique_ptr<SessionBinding>> bind_session(const CachedPlan& cached,
                                                     const ModelCores& cores,
                                                     std::shared_ptr<CopyService> service,
                                                     const RefitGroup& group,
                                                     const RankRefitOptions& options);

/// What a rank tells the others before a call.
struct CallRecord {
  enum class Has : std::uint8_t {
    nothing,  ///< no plan of these models.
    plan,     ///< a plan, and no session over the backend and this memory.
    all,      ///< both.
  };
  Has has = Has::nothing;
  bool by_operations = false;          ///< some tensor needs the operations.
  bool service = false;                ///< has the backend's.
  std::uint64_t planner = 0;           ///< digest of the plan that it has.
  std::string call = {};               ///< which, with the arguments that must be equal.
  std::string trouble = {};            ///< why it cannot; "" where it can.
  Code code = Code::invalid_argument;  ///< of the trouble.

  void fail_with(const Error& error) {
    trouble = error.message;
    code = error.code;
  }
};

/// Collective. What all ranks can do: the least plan, operations where any needs them, the service
/// where all have it. Errors, the same on all ranks: another call (named), a rank's trouble.
Result<CallRecord> agree(const CallRecord& mine, ControlPlane& control, double seconds);

}  // namespace reshard::megatron
