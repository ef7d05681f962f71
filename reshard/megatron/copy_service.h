// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "reshard/exec/rank_refit.h"
#include "reshard/megatron/tensor_view.h"
#include "reshard/memory/host_buffer.h"
#include "reshard/transport/transport.h"

namespace reshard {
class WorkerPool;
}  // namespace reshard

namespace reshard::megatron {

/// Identifies a transfer; equal on both sides.
struct TaskId {
  std::int64_t task = 0;  ///< 0 to 2^55 - 1.
  int part = 0;           ///< index of the tensor in the transfer, 0 to 255.
  friend auto operator<=>(const TaskId&, const TaskId&) = default;
};

/// Collects copies between ranks and runs them as one batch. Users may implement it. Not
/// thread-safe.
class CopyService {
 public:
  virtual ~CopyService() = default;
  CopyService() = default;
  CopyService(const CopyService&) = delete;
  CopyService& operator=(const CopyService&) = delete;

  /// The backend's name.
  virtual std::string_view name() const = 0;

  /// Submits a tensor of this rank to send, or to receive into; views may have gaps. Their memory
  /// is borrowed until run() returns; what is received overlaps nothing else. A send matches the
  /// receive with the same id; without ids, sends and receives between two ranks match in order.
  /// Errors: the rank or id is out of range; the service is closed.
  virtual Result<> submit_send(const TensorView& src_tensor, Rank dest_rank,
                               std::optional<TaskId> task_id = std::nullopt) = 0;
  virtual Result<> submit_recv(const TensorView& dest_tensor, Rank src_rank,
                               std::optional<TaskId> task_id = std::nullopt) = 0;

  /// Collective. Runs everything that was submitted, then forgets it, also on error. Transfers from
  /// a rank to itself are copies. Errors: a transfer to itself has no id or no counterpart, an id
  /// is used twice (all named); tensors differ; the backend's. An error aborts the group.
  virtual Result<> run() = 0;

  /// Releases the service's resources; nothing can be submitted afterwards. Idempotent.
  virtual void close() = 0;
};

/// The group of ranks that refit together, as one rank sees it.
struct RefitGroup {
  ControlPlane* control = nullptr;
  /// An existing transport, borrowed; used when its name is asked for. Ranks that are threads pass
  /// "inproc" here. All other transports are made when they are first asked for.
  Transport* transport = nullptr;
  Rank rank() const { return control->rank(); }
};

/// A service over one of reshard's transports. Large tensors travel in several messages; tensors
/// with gaps, in pieces through staging.
class TransportCopyService final : public CopyService {
 public:
  /// Borrows both. An error of run() aborts the group of `control`. `seconds` is the deadline of
  /// run(). Of `options`, staging_bytes, which must be equal on all ranks, and threads apply.
  TransportCopyService(Transport& transport, ControlPlane& control, double seconds,
                       const RankRefitOptions& options = {});
  /// Owns the transport and closes it.
  TransportCopyService(std::unique_ptr<Transport> transport, ControlPlane& control, double seconds,
                       const RankRefitOptions& options = {});
  ~TransportCopyService() override;

  std::string_view name() const override { return transport_.name(); }
  Result<> submit_send(const TensorView& src_tensor, Rank dest_rank,
                       std::optional<TaskId> task_id = std::nullopt) override;
  Result<> submit_recv(const TensorView& dest_tensor, Rank src_rank,
                       std::optional<TaskId> task_id = std::nullopt) override;
  Result<> run() override;
  void close() override;

  Transport& transport() { return transport_; }

 private:
  struct Op;
  struct Batch;
  Result<> submit(std::vector<Op>& ops, const TensorView& view, Rank peer,
                  std::optional<TaskId> task_id);
  Result<> run_batch(const Batch& batch);

  std::unique_ptr<Transport> owned_;
  Transport& transport_;
  ControlPlane& control_;
  double seconds_;
  bool closed_ = false;
  std::vector<Op> sends_, recvs_;
  std::vector<std::uint64_t> sent_,
      received_;  ///< by peer: number of transfers without an id so far.
  Index staging_bytes_;
  int threads_;
  // Made by the first batch, kept for the next ones.
  std::unique_ptr<WorkerPool> pool_;
  HostBuffer staging_;
};

/// Makes a service over the backend of this name. Collective, unless it is the group's own
/// transport. group.control must outlive it. `options` as TransportCopyService. Errors:
/// `invalid_argument` for an unknown name; `unsupported`, with the reason, for a backend that does
/// not work here.
Result<std::unique_ptr<CopyService>> make_copy_service(std::string_view backend,
                                                       const RefitGroup& group, double seconds,
                                                       const RankRefitOptions& options = {});

/// Checks that make_copy_service() can make this backend. Not collective. Errors: as above.
Result<> check_backend(std::string_view backend, const RefitGroup& group);

}  // namespace reshard::megatron
