// SPDX-License-Identifier: Apache-2.0
// What the emulated GPU's functions share: its state, and how they are made.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "reshard/cuda/driver.h"
#include "reshard/cuda/emulated_gpu_testutil.h"
#include "reshard/cuda/emulated_pages_testutil.h"

// What CUDA's handles point to.
struct CUctx_st {
  int device = 0;
};
struct CUstream_st;
struct CUevent_st {
  int recorded = 0, done = 0;     ///< times that work recorded it; that ran.
  CUstream_st* stream = nullptr;  ///< of the last record.
};
struct CUstream_st {
  /// Each runs once it is at the front; false: it is not done yet, such as a kernel that waits for
  /// a peer.
  std::deque<std::function<bool()>> work;
  int device = 0;
};
struct CUmod_st {};
struct CUfunc_st {
  /// Runs a thread block, whose parameter is at `arguments`.
  std::function<void(const void* arguments, unsigned block, unsigned blocks)> run;
  std::size_t bytes = 0;  ///< of the parameter.
};

namespace reshard::cuda {

inline constexpr int kInvalidHandle = 400, kNotFound = 500, kInvalidContext = 201;

/// Addresses that the driver knows, from the key in Machine::memory on.
struct KnownRange {
  enum class Kind { host, registered, allocated, opened, mapped };
  Kind kind = Kind::host;
  std::size_t bytes = 0;
  std::shared_ptr<PageFile> pages = nullptr;  ///< of the GPU; null: host memory.
  std::shared_ptr<PageView> view =
      nullptr;             ///< that this range owns; null if it is in a reservation.
  std::size_t offset = 0;  ///< of the range in its pages.
  int opened = 0;          ///< times that cuIpcOpenMemHandle() gave it.
};

struct Machine {
  std::mutex mutex;  ///< held by every function of the driver.
  EmulatedGpu gpu;
  std::map<std::uintptr_t, KnownRange> memory;     ///< by address.
  std::map<std::uintptr_t, std::size_t> reserved;  ///< addresses: bytes.
  /// For each handle, the memory and the number of times it was given out and not released.
  std::map<MemoryHandle, std::pair<std::shared_ptr<PageFile>, int>> handles;
  MemoryHandle last_handle = 0;
  std::set<std::pair<Context, Context>> peers;  ///< the first reaches the other's memory.
  std::set<CUstream_st*> streams;
  std::set<CUevent_st*> events;
  std::vector<std::unique_ptr<CUevent_st>> ended_events;
  std::set<CUmod_st*> modules;
  CUstream_st legacy;
  CUctx_st contexts[16];
  int retained = 0;
  int pushed = 0;  ///< contexts that are current in some thread.
  std::map<std::string, CUfunc_st> kernels;
};

Machine& machine();

/// Contexts that the calling thread pushed.
std::vector<Context>& current();

/// Makes a function of the driver out of a lambda without captures: one call at a time.
template <class R, class... A, class F>
void set(R (*&function)(A...), F) {
  function = [](A... arguments) -> R {
    const std::lock_guard lock(machine().mutex);
    return F{}(arguments...);
  };
}

/// Counts a call. Returns the fault that was asked for, or success.
int called(const char* name);

/// The same for calls that need a context.
int called_in_context(const char* name);

CUstream_st& stream_of(StreamHandle handle);

/// Runs what a stream has. False: it has work that is not done yet.
bool run_all(CUstream_st& stream);

/// Runs the stream that recorded an event until it has happened so many times. False: as run_all().
bool run_until(CUevent_st& event, int times);

/// Calls f() until it returns true; in between others may call the driver. @pre the mutex is held
template <class F>
void block_until(F&& f) {
  while (!f()) {
    machine().mutex.unlock();
    std::this_thread::yield();
    machine().mutex.lock();
  }
}

template <class F>
int give(const char* name, StreamHandle stream, F&& work) {
  const int status = called_in_context(name);
  if (status != kSuccess) return status;
  stream_of(stream).work.emplace_back([work = std::forward<F>(work)]() mutable {
    if constexpr (std::is_same_v<decltype(work()), bool>) {
      return work();
    } else {
      work();
      return true;
    }
  });
  return status;
}

/// Runs everything that streams of the current context's device have, as calls do that change what
/// addresses mean; waits for work that is not done yet.
void run_all_streams();
/// The range that has an address; null if none has.
const std::pair<const std::uintptr_t, KnownRange>* find_range(DevicePtr at);

// Each sets the functions of its part.
void set_memory(Driver& driver);
void set_sharing(Driver& driver);
void set_kernels(Driver& driver);

}  // namespace reshard::cuda
