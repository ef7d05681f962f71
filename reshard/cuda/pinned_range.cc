// SPDX-License-Identifier: Apache-2.0
#include "reshard/cuda/pinned_range.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>

#include "reshard/cuda/memory.h"
#include "reshard/cuda/pointer.h"

namespace reshard::cuda {
namespace {

/// A call of cuMemHostRegister(), until the last range that needs it has gone.
struct Registration {
  std::shared_ptr<const Device> device;
  std::uintptr_t bytes = 0;
  int users = 0;
};

struct Registrations {
  std::mutex mutex;
  std::map<std::uintptr_t, Registration> by_begin;  // They do not overlap.

  /// That of a byte; the end if it has none.
  auto find(std::uintptr_t at) {
    const auto after = by_begin.upper_bound(at);
    if (after == by_begin.begin()) return by_begin.end();
    const auto last = std::prev(after);
    return at - last->first < last->second.bytes ? last : by_begin.end();
  }
};

Registrations& registrations() {
  static auto* const all = new Registrations;  // Ranges may go at the end of the process.
  return *all;
}

/// The end of what somebody else has pinned around a byte; the byte if CUDA does not know it.
Result<std::uintptr_t> end_of_pinned(const Device& device, std::uintptr_t at) {
  const auto ask = [&](PointerAttribute what, void* answer) {
    return ask_of_pointer(device, what, reinterpret_cast<const void*>(at), answer);
  };
  unsigned type = 0;
  DevicePtr begin = 0;
  std::size_t bytes = 0;
  if (!RESHARD_TRY(ask(kMemoryType, &type)) || type != kHostMemory) return at;
  if (!RESHARD_TRY(ask(kRangeBegin, &begin)) || !RESHARD_TRY(ask(kRangeBytes, &bytes))) return at;
  return begin <= at && at < begin + bytes ? begin + bytes : at;
}

/// Pins memory part by part, as far as it is not pinned. For a holder of the lock.
class Pinner {
 public:
  Pinner(const std::shared_ptr<const Device>& device, Registrations& all,
         std::vector<std::uintptr_t>& held)
      : device_(device), all_(all), held_(held) {}

  Result<> pin(std::uintptr_t begin, std::uintptr_t end) {
    for (std::uintptr_t at = begin; at < end;) at = RESHARD_TRY(pin_first_part(at, end));
    return {};
  }

 private:
  /// Returns where the part ends.
  Result<std::uintptr_t> pin_first_part(std::uintptr_t at, std::uintptr_t end) {
    if (const auto ours = all_.find(at); ours != all_.by_begin.end()) {
      hold(*ours);
      return ours->first + ours->second.bytes;
    }
    int status = kSuccess;
    const auto whole = register_part(at, end, status);
    if (whole) return end;
    if (status != kIsPinned && status != kInvalidValue) return tl::unexpected(whole.error());
    if (const auto others = RESHARD_TRY(end_of_pinned(*device_, at)); others > at) return others;
    // A later byte is pinned: which one, only trying shows. If it is none, the first part cannot
    // be pinned either.
    while (end - at > 1) {
      end = at + (end - at) / 2;
      if (register_part(at, end, status)) return end;
    }
    return tl::unexpected(whole.error());
  }

  /// `status`: what cuMemHostRegister() returned: kIsPinned, or of memory that CUDA allocated
  /// kInvalidValue, if a byte is pinned already.
  Result<> register_part(std::uintptr_t at, std::uintptr_t end, int& status) {
    RESHARD_TRY(device_->call(fmt::format("cuMemHostRegister of {} bytes", end - at), [&] {
      return status = device_->driver().cuMemHostRegister(reinterpret_cast<void*>(at), end - at,
                                                          kPortableHostMemory | kMappedHostMemory);
    }));
    hold(*all_.by_begin.try_emplace(at, Registration{device_, end - at}).first);
    return {};
  }

  void hold(std::pair<const std::uintptr_t, Registration>& registration) {
    if (std::ranges::find(held_, registration.first) != held_.end()) return;
    held_.push_back(registration.first);
    ++registration.second.users;
  }

  const std::shared_ptr<const Device>& device_;
  Registrations& all_;
  std::vector<std::uintptr_t>& held_;
};

}  // namespace

Result<PinnedRange> PinnedRange::make(std::shared_ptr<const Device> device,
                                      std::span<std::byte> memory) {
  PinnedRange out;
  if (memory.empty()) return out;
  if (!device->uses_host_addresses())
    return fail(Code::unsupported,
                fmt::format("GPU {} ({}) does not use host memory at its host addresses",
                            device->ordinal(), device->name()));
  const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
  const auto pinned = [&] {
    auto& all = registrations();
    const std::lock_guard lock(all.mutex);
    return Pinner(device, all, out.held_).pin(begin, begin + memory.size());
  }();
  if (!pinned) return tl::unexpected(pinned.error());
  return out;
}

PinnedRange::~PinnedRange() {
  if (held_.empty()) return;
  auto& all = registrations();
  const std::lock_guard lock(all.mutex);
  for (const std::uintptr_t begin : held_) {
    const auto found = all.by_begin.find(begin);
    if (--found->second.users > 0) continue;
    const auto device = std::move(found->second.device);
    all.by_begin.erase(found);
    // Fails only if the process is ending and CUDA has gone before it.
    (void)device->call("cuMemHostUnregister", [&] {
      return device->driver().cuMemHostUnregister(reinterpret_cast<void*>(begin));
    });
  }
}

}  // namespace reshard::cuda
