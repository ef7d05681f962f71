// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "reshard/plan/planner.h"

/// A plan in the terms of Megatron-Core's resharding: slices of named parameters, one operation per
/// peer. A view of Planner for callers that run operations themselves; reshard's own executor uses
/// RankPlan and moves.
namespace reshard {

/// One logical send or receive. Operations with equal task ids on two ranks are one transfer.
struct TransferOp {
  std::string param_name;  ///< the name on this rank.
  Rank peer_rank;          ///< this rank for a local copy.
  bool is_send = false;
  Box my_slice;    ///< of this rank's local tensor, in the shape of its module.
  Box peer_slice;  ///< of the peer's.
  /// Destination rank * 2^32 + the position among the operations of that destination, ordered by
  /// (its parameters, position in the parameter, peer). Ascending over destinations, and known to
  /// both sides without counting the operations of other ranks.
  std::int64_t task_id = 0;
  friend bool operator==(const TransferOp&, const TransferOp&) = default;
};

/// The operations of one rank, each list by task id. A local copy is in both lists.
struct ReshardPlan {
  std::vector<TransferOp> send_ops, recv_ops;
  /// Persistent buffers and parameters of another dtype on the source than on this rank, with the
  /// dtype that they must get if values are not converted in transit. By this rank's names.
  std::map<std::string, DType> buffer_dtypes;
  friend bool operator==(const ReshardPlan&, const ReshardPlan&) = default;
};

/// "ReshardPlan(sends=3, recvs=2)"
std::string to_string(const ReshardPlan& plan);

/// The operations of one rank, computed from its own plan and those of the ranks that it sends to,
/// as each rank does for itself. A canonical box that is no slice of a local tensor becomes several
/// operations. A tensor in several local tensors of a destination is sent to each of them.
ReshardPlan replayed_reshard_plan(const Planner& planner, Rank r);

/// The operations of all ranks, as rank 0 computes them for everyone. Equal to
/// replayed_reshard_plan of each rank. Includes ranks without operations.
std::map<Rank, ReshardPlan> centralized_reshard_plans(const Planner& planner);

/// The binary form of a plan, and its inverse. Errors of decoding: Code::corrupt.
std::vector<std::byte> encode_reshard_plan(const ReshardPlan& plan);
Result<ReshardPlan> decode_reshard_plan(std::span<const std::byte> bytes);

}  // namespace reshard
