// SPDX-License-Identifier: Apache-2.0
#include "reshard/gpu_transport/nccl/communicator.h"

#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "reshard/cuda/driver.h"

namespace reshard::nccl {
namespace {

constexpr std::chrono::microseconds kPollPause{200};
constexpr std::chrono::seconds kFinalizeTime{2};

}  // namespace

template <class F>
Result<> Communicator::call(const char* what, F&& f) const {
  int status = kSuccess;
  RESHARD_TRY(stream_.device().call("cuCtxPushCurrent", [&] {
    status = f();
    return 0;
  }));
  return check(nccl_, status, comm_, what);
}

Result<std::unique_ptr<Communicator>> Communicator::make(const Nccl& nccl,
                                                         std::shared_ptr<const cuda::Device> device,
                                                         const UniqueId& id, ControlPlane& control,
                                                         Deadline deadline) {
  auto stream = RESHARD_TRY(cuda::Stream::make(std::move(device)));
  std::unique_ptr<Communicator> out(new Communicator(nccl, std::move(stream)));
  Config config;
  config.blocking = 0;
  RESHARD_TRY(out->call("ncclCommInitRankConfig", [&] {
    return nccl.ncclCommInitRankConfig(&out->comm_, control.size(), id, control.rank().value(),
                                       &config);
  }));
  while (!RESHARD_TRY(out->is_ready())) {
    RESHARD_TRY(control.status());
    if (deadline.expired())
      return fail(Code::deadline, "nccl: not all ranks joined the communicator in time");
    std::this_thread::sleep_for(kPollPause);
  }
  return out;
}

Communicator::~Communicator() { end(false); }

Result<bool> Communicator::is_ready() const {
  int state = kSuccess;
  RESHARD_TRY(
      call("ncclCommGetAsyncError", [&] { return nccl_.ncclCommGetAsyncError(comm_, &state); }));
  RESHARD_TRY(check(nccl_, state, comm_, "a group of messages"));
  return state == kSuccess;
}

Result<> Communicator::give(std::span<const Operation> group) const {
  return call("a group of messages", [&] {
    if (const int status = nccl_.ncclGroupStart(); status != kSuccess) return status;
    int status = kSuccess;
    for (const Operation& o : group) {
      const int given =
          o.sending ? nccl_.ncclSend(o.bytes, o.size, kBytes, o.peer, comm_, stream_.handle())
                    : nccl_.ncclRecv(o.bytes, o.size, kBytes, o.peer, comm_, stream_.handle());
      if (given == kSuccess || given == kInProgress) continue;
      status = given;
      break;
    }
    // A group that was started must be ended, also after an error.
    const int ended = nccl_.ncclGroupEnd();
    return status == kSuccess ? ended : status;
  });
}

/// True if NCCL has ended all its work on this communicator.
bool Communicator::finalize() const {
  const Deadline deadline = Deadline::after(kFinalizeTime);
  if (!call("ncclCommFinalize", [&] { return nccl_.ncclCommFinalize(comm_); })) return false;
  while (true) {
    const Result<bool> done = is_ready();
    if (!done || deadline.expired()) return false;
    if (*done) return true;
    std::this_thread::sleep_for(kPollPause);
  }
}

void Communicator::end(bool cleanly) {
  if (comm_ == nullptr) return;
  const bool is_over = cleanly && finalize();
  // The library has freed the communicator when these fail, too.
  (void)stream_.device().call("cuCtxPushCurrent", [&] {
    (void)(is_over ? nccl_.ncclCommDestroy(comm_) : nccl_.ncclCommAbort(comm_));
    return 0;
  });
  comm_ = nullptr;
  // Kernels leave when their communicator is aborted; after that NCCL uses no memory.
  (void)stream_.synchronize();
}

}  // namespace reshard::nccl
