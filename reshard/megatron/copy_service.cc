// SPDX-License-Identifier: Apache-2.0
#include "reshard/megatron/copy_service.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "reshard/exec/agreement.h"
#include "reshard/exec/run_program.h"
#include "reshard/memory/worker_pool.h"
#include "reshard/program/compile_batch.h"
#include "reshard/transport/group.h"
#include "reshard/transport/registry.h"

namespace reshard::megatron {
namespace {

tl::unexpected<Error> bad(std::string_view service, const std::string& what) {
  return fail(Code::invalid_argument, fmt::format("copy service {}: {}", service, what));
}

constexpr int kPartBits = 8;
constexpr std::int64_t kTasks = std::int64_t{1} << (63 - kPartBits);
/// Transfers without an id are numbered from here.
constexpr std::uint64_t kCounted = std::uint64_t{1} << 63;

std::uint64_t message_id(TaskId id) {
  return static_cast<std::uint64_t>(id.task) << kPartBits | static_cast<std::uint64_t>(id.part);
}

std::string text_of(std::uint64_t message) {
  const auto part = message & ((1U << kPartBits) - 1);
  return fmt::format("task id {}{}", message >> kPartBits,
                     part == 0 ? "" : fmt::format(" part {}", part));
}

}  // namespace

struct TransportCopyService::Op {
  TensorView view;
  Rank peer;
  bool has_id = false;
  std::uint64_t message = 0;
};

/// The submitted operations: copies within this rank, and messages.
struct TransportCopyService::Batch {
  struct Local {
    TensorView from, to;
  };
  std::vector<Local> locals;
  std::vector<Op> sends, recvs;
};

namespace {

/// The ops of this rank with itself, by id.
template <class Op>
Result<std::map<std::uint64_t, const Op*>> by_id(std::string_view service, const char* what,
                                                 const std::vector<Op>& ops, Rank me) {
  std::map<std::uint64_t, const Op*> out;
  for (const Op& op : ops) {
    if (op.peer != me) continue;
    if (!op.has_id)
      return bad(
          service,
          fmt::format("a local {} has no task id; local sends and receives are matched by id",
                      what));
    if (!out.try_emplace(op.message, &op).second)
      return bad(service, fmt::format("two local {}s with {}", what, text_of(op.message)));
  }
  return out;
}

template <class Op>
Result<> distinct(std::string_view service, const char* what, const std::vector<Op>& ops) {
  std::vector<std::pair<Rank, std::uint64_t>> ids;
  for (const Op& op : ops) ids.emplace_back(op.peer, op.message);
  std::ranges::sort(ids);
  const auto twice = std::ranges::adjacent_find(ids);
  if (twice == ids.end()) return {};
  return bad(service, fmt::format("two {}s with {} between rank {} and this one", what,
                                  text_of(twice->second), twice->first.value()));
}

template <class Op, class BatchOf>
Result<BatchOf> sorted_out(std::string_view service, const std::vector<Op>& sends,
                           const std::vector<Op>& recvs, Rank me) {
  BatchOf batch;
  const auto from = RESHARD_TRY(by_id(service, "send", sends, me));
  const auto to = RESHARD_TRY(by_id(service, "receive", recvs, me));
  for (const auto& [id, recv] : to) {
    const auto send = from.find(id);
    if (send == from.end())
      return bad(service, fmt::format("no local send for the receive with {}", text_of(id)));
    batch.locals.push_back({send->second->view, recv->view});
  }
  for (const auto& [id, send] : from)
    if (!to.contains(id))
      return bad(service, fmt::format("no local receive for the send with {}", text_of(id)));
  for (const Op& op : sends)
    if (op.peer != me) batch.sends.push_back(op);
  for (const Op& op : recvs)
    if (op.peer != me) batch.recvs.push_back(op);
  RESHARD_TRY(distinct(service, "send", batch.sends));
  RESHARD_TRY(distinct(service, "receive", batch.recvs));
  return batch;
}

}  // namespace

TransportCopyService::TransportCopyService(Transport& transport, ControlPlane& control,
                                           double seconds, const RankRefitOptions& options)
    : transport_(transport),
      control_(control),
      seconds_(seconds),
      sent_(static_cast<std::size_t>(transport.size())),
      received_(static_cast<std::size_t>(transport.size())),
      staging_bytes_(options.staging_bytes),
      threads_(options.threads) {}

TransportCopyService::TransportCopyService(std::unique_ptr<Transport> transport,
                                           ControlPlane& control, double seconds,
                                           const RankRefitOptions& options)
    : TransportCopyService(*transport, control, seconds, options) {
  owned_ = std::move(transport);
}

TransportCopyService::~TransportCopyService() { close(); }

Result<> TransportCopyService::submit(std::vector<Op>& ops, const TensorView& view, Rank peer,
                                      std::optional<TaskId> task_id) {
  if (closed_) return bad(name(), "it is closed");
  if (peer.value() < 0 || peer.value() >= transport_.size())
    return bad(name(),
               fmt::format("rank {} is not in the group of {}", peer.value(), transport_.size()));
  if (task_id && (task_id->task < 0 || task_id->task >= kTasks || task_id->part < 0 ||
                  task_id->part >= 1 << kPartBits))
    return bad(name(),
               fmt::format("task id {} part {} is out of range", task_id->task, task_id->part));
  Op op{view, peer, task_id.has_value(), task_id ? message_id(*task_id) : 0};
  auto& count = &ops == &sends_ ? sent_ : received_;
  if (!task_id) op.message = kCounted + count[peer.index()]++;
  ops.push_back(op);
  return {};
}

Result<> TransportCopyService::submit_send(const TensorView& src_tensor, Rank dest_rank,
                                           std::optional<TaskId> task_id) {
  return submit(sends_, src_tensor, dest_rank, task_id);
}

Result<> TransportCopyService::submit_recv(const TensorView& dest_tensor, Rank src_rank,
                                           std::optional<TaskId> task_id) {
  return submit(recvs_, dest_tensor, src_rank, task_id);
}

Result<> TransportCopyService::run() {
  if (closed_) return bad(name(), "it is closed");
  const std::vector<Op> sends = std::exchange(sends_, {}), recvs = std::exchange(recvs_, {});
  auto batch = sorted_out<Op, Batch>(name(), sends, recvs, transport_.rank());
  Result<> done = batch ? run_batch(*batch) : tl::unexpected(batch.error());
  if (!done) control_.abort(done.error().message);
  return done;
}

Result<> TransportCopyService::run_batch(const Batch& batch) {
  const Deadline deadline = Deadline::after(std::chrono::duration<double>(seconds_));
  TransferBatch moves;
  std::vector<std::byte*> from, to;  // By local tensor.
  for (const auto* ops : {&batch.sends, &batch.recvs})
    for (const Op& op : *ops) {
      auto packing = packing_of(op.view);
      if (!packing)
        return tl::unexpected(
            Error(packing.error())
                .in(fmt::format("copy service {}: a tensor {} rank {}", name(),
                                ops == &batch.sends ? "for" : "from", op.peer.value())));
      moves.transfers.push_back({op.peer, op.message, ops == &batch.sends, *packing});
      from.push_back(op.view.data);
      to.push_back(op.view.data);
    }
  for (const Batch::Local& local : batch.locals) {
    if (local.from.data == local.to.data && local.from.shape == local.to.shape) continue;
    moves.copies.push_back(RESHARD_TRY(copy_between(local.from, local.to)));
    from.push_back(local.from.data);
    to.push_back(local.to.data);
  }
  const auto compile = [&](int round_bits) {
    return compile_batch(transport_.rank(), transport_.size(), moves, staging_bytes_, round_bits);
  };
  const auto program = std::make_shared<const Program>(
      RESHARD_TRY(transport_.capabilities().rounds ? compile_in_rounds(compile, control_, deadline)
                                                   : compile(-1)));
  if (!pool_) pool_ = std::make_unique<WorkerPool>(threads_);
  const auto memory = [&](const ProgramBuffer& buffer) {
    return (buffer.kind == ProgramBuffer::Kind::source ? from : to)[buffer.slot.index()];
  };
  return run_program(program, {&transport_, control_, *pool_, staging_}, memory, deadline);
}

void TransportCopyService::close() {
  closed_ = true;
  sends_.clear();
  recvs_.clear();
  pool_.reset();
  staging_ = {};
  if (owned_ != nullptr) owned_->close();
}

Result<> check_backend(std::string_view backend, const RefitGroup& group) {
  if (group.transport != nullptr && group.transport->name() == backend) return {};
  const auto info = find_transport(backend);
  if (!info)
    return fail(Code::invalid_argument, fmt::format("unknown backend '{}'; known: {}", backend,
                                                    fmt::join(transport_names(), ", ")));
  if (!info->available)
    return fail(Code::unsupported, fmt::format("backend '{}': {}", backend, info->reason));
  if (backend == "inproc")
    return fail(Code::invalid_argument,
                "backend 'inproc': pass it as the group's transport; between processes use another "
                "backend");
  return {};
}

Result<std::unique_ptr<CopyService>> make_copy_service(std::string_view backend,
                                                       const RefitGroup& group, double seconds,
                                                       const RankRefitOptions& options) {
  RESHARD_TRY(check_backend(backend, group));
  if (group.transport != nullptr && group.transport->name() == backend)
    return std::make_unique<TransportCopyService>(*group.transport, *group.control, seconds,
                                                  options);
  TransportOptions how;
  how.deadline = Deadline::after(std::chrono::duration<double>(seconds));
  auto transport = RESHARD_TRY(make_transport(backend, *group.control, how));
  return std::make_unique<TransportCopyService>(std::move(transport), *group.control, seconds,
                                                options);
}

}  // namespace reshard::megatron
