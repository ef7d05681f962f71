// SPDX-License-Identifier: Apache-2.0
#include "reshard/gpu_transport/nvshmem/runtime.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "reshard/cuda/driver.h"
#include "reshard/transport/deadline_wait.h"

namespace reshard::nvshmem {
namespace {

/// Between two looks at the control plane.
constexpr std::chrono::milliseconds kStartNap{20};

/// The first message of each rank to all others.
struct Hello {
  std::uint64_t world = 0;  ///< 0: none.
  std::int64_t pe = -1;
  std::uint64_t staging_bytes = 0, groups = 0;
};

Result<std::vector<Hello>> exchange_hellos(ControlPlane& control, const Hello& mine,
                                           Deadline deadline) {
  std::vector<Hello> all(static_cast<std::size_t>(control.size()));
  RESHARD_TRY(control.all_gather_into(std::as_bytes(std::span(&mine, 1)),
                                      std::as_writable_bytes(std::span(all)), deadline));
  return all;
}

/// All ranks come to the same verdict.
Result<> check_hellos(std::span<const Hello> all) {
  std::set<std::int64_t> pes;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].world != all[0].world)
      return fail(Code::unsupported,
                  fmt::format("nvshmem: rank {} is not in the NVSHMEM world of rank 0; a process "
                              "has one world, which its first group makes and which cannot grow: "
                              "start new processes",
                              i));
    if (all[i].world == 0 && all[i].staging_bytes != all[0].staging_bytes)
      return fail(Code::invalid_argument,
                  fmt::format("nvshmem: rank {} has {} bytes of staging and rank 0 {}; all must "
                              "have the same",
                              i, all[i].staging_bytes, all[0].staging_bytes));
    if (all[i].world != 0 && !pes.insert(all[i].pe).second)
      return fail(Code::corrupt, fmt::format("nvshmem: two ranks are PE {}", all[i].pe));
  }
  return {};
}

std::uint64_t group_number(std::span<const Hello> all, std::uint64_t world) {
  std::uint64_t x = mix64(world);
  for (const Hello& hello : all) x = mix64(x ^ mix64(hello.groups + 1));
  return x;
}

}  // namespace

Result<> agree(ControlPlane& control, const Result<>& mine, Deadline deadline) {
  std::vector<std::byte> text;
  if (!mine) {
    text.push_back(static_cast<std::byte>(mine.error().code));
    const auto bytes = std::as_bytes(std::span(mine.error().message));
    text.insert(text.end(), bytes.begin(), bytes.end());
  }
  const auto all = RESHARD_TRY(control.all_gather(text, deadline));
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].empty()) continue;
    if (static_cast<int>(i) == control.rank().value()) return mine;
    const auto code = std::to_integer<unsigned>(all[i][0]);
    const bool known = code <= static_cast<unsigned>(Code::aborted);
    return tl::unexpected(
        Error{known ? static_cast<Code>(code) : Code::corrupt,
              std::string(reinterpret_cast<const char*>(all[i].data()) + 1, all[i].size() - 1)}
            .in(fmt::format("rank {}", i)));
  }
  return {};
}

/// The start of NVSHMEM, which blocks until all PEs are there. Outlives a caller who gives up.
struct Runtime::Start {
  Start(const Library& nvshmem, std::shared_ptr<const cuda::Device> gpu, const UniqueId& unique,
        const ControlPlane& control, const Staging& staging)
      : library(nvshmem),
        device(std::move(gpu)),
        id(unique),
        rank(control.rank().value()),
        ranks(control.size()),
        bytes(staging.total_bytes()) {}

  const Library& library;
  const std::shared_ptr<const cuda::Device> device;
  const UniqueId id;
  const int rank, ranks;
  const std::size_t bytes;

  std::mutex mutex;
  std::condition_variable changed;
  bool over = false;
  // Set when it is over:
  Result<> outcome;
  int pe = -1;
  bool waits = false;
  std::byte* base = nullptr;

  Result<> run() {
    InitAttributes attributes;
    int status = 0;
    const auto call = [&](std::string_view what, auto&& f) {
      return device->call(what, [&] {
        f();
        return static_cast<int>(cuda::kSuccess);
      });
    };
    RESHARD_TRY(call("nvshmemx_hostlib_init_attr", [&] {
      status = library.nvshmemx_set_attr_uniqueid_args(rank, ranks, &id, &attributes);
      if (status == 0) status = library.nvshmemx_hostlib_init_attr(kInitWithUniqueId, &attributes);
    }));
    // It may report success and not have started.
    const int state = library.nvshmemx_init_status();
    if (status != 0 || state <= kBootstrapped)
      return fail(Code::io, fmt::format("nvshmem: nvshmemx_hostlib_init_attr failed with status {} "
                                        "in state {}; NVSHMEM_DEBUG=WARN says why",
                                        status, state));
    RESHARD_TRY(call("nvshmem_malloc", [&] {
      pe = library.nvshmem_my_pe();
      base = static_cast<std::byte*>(library.nvshmem_malloc(bytes));
    }));
    if (base == nullptr)
      return fail(Code::io, fmt::format("nvshmem: nvshmem_malloc of {} bytes failed; "
                                        "NVSHMEM_SYMMETRIC_SIZE may limit it",
                                        bytes));
    waits = state != kLimitedSharing;
    return {};
  }
};

namespace {

/// NVSHMEM has a thread that reads memory of the driver's, which the driver's destructors free at
/// the end of a process (3.4.5: a segmentation fault), and only nvshmem_finalize() stops it. So the
/// process ends before the destructors of libraries that were loaded by now, with its own status.
void end_before_destructors() {
  static const int registered = on_exit(
      [](int status, void*) {
        std::fflush(nullptr);
        _exit(status);
      },
      nullptr);
  (void)registered;
}

}  // namespace

Runtime& Runtime::of_process(const Library& library) {
  static Runtime world(library);
  end_before_destructors();
  return world;
}

Result<> Runtime::check_free(const cuda::Device& device) const {
  if (!broken_.empty())
    return fail(Code::unsupported, fmt::format("nvshmem: not usable any more: {}", broken_));
  if (in_group_)
    return fail(Code::unsupported,
                "nvshmem: this process is in a group already; NVSHMEM has one world per process, "
                "and a world one group at a time");
  if (id_ != 0 && device_->ordinal() != device.ordinal())
    return fail(Code::unsupported,
                fmt::format("nvshmem: this process has started NVSHMEM on GPU {}, not {}",
                            device_->ordinal(), device.ordinal()));
  if (id_ == 0 && library_.nvshmemx_init_status() != kNotInitialized)
    return fail(Code::unsupported,
                "nvshmem: this process has started NVSHMEM by itself, and has one world only");
  return {};
}

Result<Membership> Runtime::enter(ControlPlane& control,
                                  const std::shared_ptr<const cuda::Device>& device,
                                  std::size_t staging_bytes, Deadline deadline) {
  RESHARD_TRY(agree(control, check_free(*device), deadline));
  const Hello mine{id_, pe_, staging_bytes, groups_};
  const auto all = RESHARD_TRY(exchange_hellos(control, mine, deadline));
  RESHARD_TRY(check_hellos(all));
  if (id_ == 0) RESHARD_TRY(start(control, device, staging_bytes, deadline));

  std::vector<int> pes;
  for (std::size_t i = 0; i < all.size(); ++i)
    pes.push_back(all[i].world == 0 ? static_cast<int>(i) : static_cast<int>(all[i].pe));
  // What earlier groups put has arrived: each rank waited for that before it left.
  const cuda::Stream stream = RESHARD_TRY(cuda::Stream::make(device));
  RESHARD_TRY(stream.fill(base_, std::byte{0}, static_cast<Index>(staging_->words_bytes())));
  RESHARD_TRY(stream.synchronize());
  ++groups_;
  in_group_ = true;
  return Membership{&library_, device_,        base_,  *staging_,
                    pes,       control.rank(), waits_, group_number(all, id_)};
}

Result<> Runtime::start(ControlPlane& control, const std::shared_ptr<const cuda::Device>& device,
                        std::size_t staging_bytes, Deadline deadline) {
  const int ranks = control.size();
  const Staging staging = RESHARD_TRY(Staging::divide(staging_bytes, ranks));
  UniqueId id;
  Result<> made;
  if (control.rank() == Rank{0}) {
    int status = 0;
    made = device->call("nvshmemx_get_uniqueid", [&] {
      status = library_.nvshmemx_get_uniqueid(&id);
      return static_cast<int>(cuda::kSuccess);
    });
    if (status != 0)
      made = fail(Code::io, fmt::format("nvshmem: nvshmemx_get_uniqueid failed with status {}; "
                                        "NVSHMEM_DEBUG=WARN says why",
                                        status));
  }
  RESHARD_TRY(agree(control, made, deadline));
  std::vector<UniqueId> ids(static_cast<std::size_t>(ranks));
  RESHARD_TRY(control.all_gather_into(std::as_bytes(std::span(&id, 1)),
                                      std::as_writable_bytes(std::span(ids)), deadline));
  const auto begun = std::make_shared<Start>(library_, device, ids[0], control, staging);
  std::thread([begun] {
    Result<> outcome = begun->run();
    const std::lock_guard lock(begun->mutex);
    begun->outcome = std::move(outcome);
    begun->over = true;
    begun->changed.notify_all();
  }).detach();
  if (Result<> started = wait_for(control, *begun, deadline); !started) {
    broken_ = started.error().message;
    return started;
  }
  const std::string_view text(reinterpret_cast<const char*>(&ids[0]), sizeof ids[0]);
  id_ = std::max<std::uint64_t>(1, hash64(text));
  device_ = device;
  pe_ = begun->pe;
  base_ = begun->base;
  waits_ = begun->waits;
  staging_ = staging;
  return {};
}

Result<> Runtime::wait_for(ControlPlane& control, Start& begun, Deadline deadline) {
  std::unique_lock lock(begun.mutex);
  const auto over = [&] { return begun.over; };
  while (!wait_until(begun.changed, lock, std::min(deadline, Deadline::after(kStartNap)), over)) {
    RESHARD_TRY(control.status());
    if (deadline.expired())
      return fail(Code::deadline,
                  "nvshmem: deadline passed while NVSHMEM started; that cannot be stopped");
  }
  RESHARD_TRY(begun.outcome);
  if (begun.pe == begun.rank) return {};
  return fail(Code::io, fmt::format("nvshmem: rank {} became PE {}", begun.rank, begun.pe));
}

void Runtime::leave(bool drained) {
  in_group_ = false;
  if (!drained && broken_.empty()) broken_ = "work of an earlier group did not end";
}

}  // namespace reshard::nvshmem
