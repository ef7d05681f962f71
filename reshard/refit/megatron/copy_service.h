// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "reshard/refit/megatron/tensor_view.h"
#include "reshard/transport/transport.h"

namespace reshard::megatron {

/// Names a transfer, equally on both sides.
struct TaskId {
  std::int64_t task = 0;  ///< 0 to 2^55 - 1.
  int part = 0;           ///< which tensor of the transfer, 0 to 255.
  friend auto operator<=>(const TaskId&, const TaskId&) = default;
};

/// Submits copies between ranks and runs them as one batch. Users may implement it. One thread at a
/// time.
class CopyService {
 public:
  virtual ~CopyService() = default;
  CopyService() = default;
  CopyService(const CopyService&) = delete;
  CopyService& operator=(const CopyService&) = delete;

  /// The backend's.
  virtual std::string_view name() const = 0;

  /// Registers a tensor of this rank to be sent, or to be received into; views may have gaps. Their
  /// memory is borrowed until run() returns. A transfer meets the one of the same id, or without
  /// ids the one at the same place in the order of those between the two ranks. Errors: a rank or
  /// an id out of range, after close().
  virtual Result<> submit_send(const TensorView& src_tensor, Rank dest_rank,
                               std::optional<TaskId> task_id = std::nullopt) = 0;
  virtual Result<> submit_recv(const TensorView& dest_tensor, Rank src_rank,
                               std::optional<TaskId> task_id = std::nullopt) = 0;

  /// Runs all that was submitted and forgets it, also on error. Transfers of a rank to itself are
  /// copies. Errors: one of those without id, with an id used twice, or without its other side
  /// (all named); tensors that differ; what the backend says. An error ends the group.
  virtual Result<> run() = 0;

  /// Gives back what the service holds; nothing can be submitted afterwards. Calling it again does
  /// nothing.
  virtual void close() = 0;
};

/// The ranks that refit together, on one of them.
struct RefitGroup {
  ControlPlane* control = nullptr;
  /// A data plane that is there already, borrowed; taken where its name is asked for. Threads of
  /// one process bring "inproc" so; all others are made when they are first asked for.
  Transport* transport = nullptr;
  Rank rank() const { return control->rank(); }
};

/// A service over a transport of reshard.
class TransportCopyService final : public CopyService {
 public:
  /// Borrows both. Error of run() abort the group of `control`.
  TransportCopyService(Transport& transport, ControlPlane& control, double seconds);
  /// Owns the transport and closes it.
  TransportCopyService(std::unique_ptr<Transport> transport, ControlPlane& control, double seconds);
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
  std::vector<std::uint64_t> sent_, received_;  ///< by peer: messages without an id so far.
  std::vector<std::byte> staging_;
};

/// Collective unless the group's own transport is meant. A service over the backend of this name;
/// group.control must outlive it. Errors: `invalid_argument` for a name that nobody knows,
/// `unsupported` with the reason for one that does not work here.
Result<std::unique_ptr<CopyService>> make_copy_service(std::string_view backend,
                                                       const RefitGroup& group, double seconds);

/// Nothing, or why this name can be no backend here; not collective.
Result<> check_backend(std::string_view backend, const RefitGroup& group);

}  // namespace reshard::megatron
