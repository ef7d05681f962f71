// SPDX-License-Identifier: Apache-2.0
#include "reshard/gpu_transport/nvshmem/transport.h"

#include <fmt/format.h>

#include <cstdlib>
#include <thread>
#include <utility>

#include "reshard/cuda/driver.h"
#include "reshard/cuda/kernel_image.h"

namespace reshard::nvshmem {
namespace {

constexpr std::size_t kDefaultStaging = 256, kMaxStaging = 65536;  // MiB

/// A wait first yields, because a GPU answers within microseconds, then sleeps.
constexpr int kYields = 256;
constexpr std::chrono::microseconds kWaitNap{20};

class NvshmemEvent final : public Event {
 public:
  NvshmemEvent(std::shared_ptr<Exchanger> exchanger, std::unique_ptr<Step> step)
      : exchanger_(std::move(exchanger)), step_(std::move(step)) {}
  ~NvshmemEvent() override { exchanger_->withdraw(*step_); }

  Result<bool> test() override {
    if (!step_->done) exchanger_->progress();
    if (step_->error) return tl::unexpected(*step_->error);
    return step_->done;
  }

  Result<> wait(Deadline deadline) override {
    for (int idle = 0; !step_->done;) {
      idle = exchanger_->progress() ? 0 : idle + 1;
      if (step_->done || idle == 0) continue;
      if (deadline.expired()) {
        exchanger_->expire(*step_);
      } else if (idle < kYields) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(kWaitNap);
      }
    }
    if (step_->error) return tl::unexpected(*step_->error);
    return {};
  }

 private:
  std::shared_ptr<Exchanger> exchanger_;
  std::unique_ptr<Step> step_;
};

class NvshmemTransport final : public Transport {
 public:
  NvshmemTransport(Runtime& runtime, std::shared_ptr<Exchanger> exchanger)
      : runtime_(&runtime), exchanger_(std::move(exchanger)) {}
  ~NvshmemTransport() override { close(); }

  std::string_view name() const override { return "nvshmem"; }
  Rank rank() const override { return exchanger_->rank(); }
  int size() const override { return exchanger_->size(); }
  Capabilities capabilities() const override { return {.message = true, .gpu_messages = true}; }

  Result<std::unique_ptr<Event>> exchange(std::span<const Send> sends,
                                          std::span<const Recv> recvs) override {
    std::unique_ptr<Step> step = RESHARD_TRY(exchanger_->post(sends, recvs));
    return std::make_unique<NvshmemEvent>(exchanger_, std::move(step));
  }

  Result<RemoteKey> share(std::span<std::byte>) override { return unsupported(); }
  Result<RemoteMemory> open(Rank, const RemoteKey&) override { return unsupported(); }
  Result<> get(std::span<const Get>) override { return unsupported(); }

  void close() override {
    exchanger_->close();
    if (runtime_ != nullptr) std::exchange(runtime_, nullptr)->leave(exchanger_->is_drained());
  }

 private:
  static tl::unexpected<Error> unsupported() {
    return fail(Code::unsupported, "nvshmem: no shared memory");
  }

  Runtime* runtime_;  ///< null after close().
  std::shared_ptr<Exchanger> exchanger_;
};

/// Bytes of symmetric memory that RESHARD_NVSHMEM_STAGING asks for.
Result<std::size_t> staging_bytes() {
  const char* const text = std::getenv("RESHARD_NVSHMEM_STAGING");
  if (text == nullptr || *text == '\0') return kDefaultStaging << 20;
  char* end = nullptr;
  const unsigned long long mib = std::strtoull(text, &end, 10);
  if (*end != '\0' || *text == '-' || mib == 0 || mib > kMaxStaging)
    return fail(Code::invalid_argument,
                fmt::format("RESHARD_NVSHMEM_STAGING is \"{}\", not a number of MiB from 1 to {}",
                            text, kMaxStaging));
  return static_cast<std::size_t>(mib) << 20;
}

/// The library, GPU and staging size of this rank.
struct Local {
  const Library* library = nullptr;
  std::shared_ptr<const cuda::Device> device;
  std::size_t staging_bytes = 0;
};

Result<Local> local_parts(const TransportOptions& options) {
  Local local;
  local.library = RESHARD_TRY(load_library());
  if (options.gpu < 0) return fail(Code::unsupported, "nvshmem: no GPU was given for this rank");
  const cuda::Driver* const driver = RESHARD_TRY(cuda::load_driver());
  local.device = RESHARD_TRY(cuda::Device::open(*driver, options.gpu, {}));
  local.staging_bytes = RESHARD_TRY(staging_bytes());
  return local;
}

}  // namespace

std::string library_version() {
  const Result<const Library*> library = load_library();
  return library ? version_of(**library) : "";
}

std::string unavailable_reason() {
  if (const auto driver = cuda::load_driver(); !driver) return driver.error().message;
  const auto library = load_library();
  return library ? "" : library.error().message;
}

Result<std::unique_ptr<Transport>> make_transport(Runtime& runtime, ControlPlane& control,
                                                  const std::shared_ptr<const cuda::Device>& device,
                                                  std::size_t staging_bytes, Deadline deadline) {
  Membership member = RESHARD_TRY(runtime.enter(control, device, staging_bytes, deadline));
  Result<std::shared_ptr<Exchanger>> made = Exchanger::make(control, std::move(member));
  std::unique_ptr<NvshmemTransport> transport;
  if (made) transport = std::make_unique<NvshmemTransport>(runtime, *made);
  // Nobody puts before all know that the words of all are zero.
  const Result<> mine = made ? Result<>() : tl::unexpected(made.error());
  const Result<> all = agree(control, mine, deadline);
  if (!made) runtime.leave(true);
  if (!all) return tl::unexpected(all.error());
  return transport;
}

Result<std::unique_ptr<Transport>> make_transport(ControlPlane& control,
                                                  const TransportOptions& options) {
  const Result<Local> local = local_parts(options);
  const Result<> mine = local ? Result<>() : tl::unexpected(local.error());
  RESHARD_TRY(agree(control, mine, options.deadline));
  return make_transport(Runtime::of_process(*local->library), control, local->device,
                        local->staging_bytes, options.deadline);
}

}  // namespace reshard::nvshmem
