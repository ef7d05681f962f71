// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "reshard/plan/planner.h"

/// A plan in the terms of Megatron-Core's resharding: slices of named parameters, one operation per
/// peer. A view of Planner for those who run operations themselves; reshard's own executor uses
/// RankPlan and moves.
namespace reshard {

/// One logical send or receive. Equal task ids on both sides are one transfer.
struct TransferOp {
  std::string param_name;  ///< this rank's own name of the parameter.
  Rank peer_rank;          ///< this rank itself for a local copy.
  bool is_send = false;
  Box my_slice;    ///< of this rank's local tensor, in the shape that its module reports.
  Box peer_slice;  ///< of the peer's.
  /// Destination rank * 2^32 + the operation's place among that destination's, which are ordered by
  /// (its parameters, place in the parameter, peer): ascending over destinations as a running
  /// number is, and known to both sides without counting what other ranks do.
  std::int64_t task_id = 0;
  friend bool operator==(const TransferOp&, const TransferOp&) = default;
};

/// One rank's operations, each list by task id. A local copy stands in both lists.
struct ReshardPlan {
  std::vector<TransferOp> send_ops, recv_ops;
  /// Persistent buffers and parameters that the source stores in another dtype than this rank: what
  /// they must become where values are not converted on the way. By this rank's names.
  std::map<std::string, DType> buffer_dtypes;
  friend bool operator==(const ReshardPlan&, const ReshardPlan&) = default;
};

/// "ReshardPlan(sends=3, recvs=2)"
std::string to_string(const ReshardPlan& plan);

/// This rank's operations, found by looking at itself and at those it sends to: what every rank
/// does for itself. A canonical box that is no slice of a local tensor becomes several operations.
/// A tensor that stands in several local tensors of a destination is sent to each of them.
ReshardPlan replayed_reshard_plan(const Planner& planner, Rank r);

/// All ranks' operations, destination by destination: what rank 0 does for everyone. Equal to
/// replayed_reshard_plan of each rank. Ranks without operations are there too.
std::map<Rank, ReshardPlan> centralized_reshard_plans(const Planner& planner);

/// A plan as bytes for the rank that it is for, and back. Errors of decoding: Code::corrupt.
std::vector<std::byte> encode_reshard_plan(const ReshardPlan& plan);
Result<ReshardPlan> decode_reshard_plan(std::span<const std::byte> bytes);

}  // namespace reshard
