// SPDX-License-Identifier: Apache-2.0
#include "reshard/cuda/emulated_gpu_testutil.h"

#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <vector>

#include "reshard/cuda/run_matrices.h"
#include "reshard/cuda/run_tiles.h"
#include "reshard/cuda/run_transposes.h"

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
  std::deque<std::function<void()>> work;
};
struct CUmod_st {};
struct CUfunc_st {
  /// Runs a thread block, whose parameter is at `arguments`.
  std::function<void(const void* arguments, unsigned block, unsigned blocks)> run;
  std::size_t bytes = 0;  ///< of the parameter.
};

namespace reshard::cuda {
namespace {

constexpr int kInvalidHandle = 400, kNotFound = 500, kInvalidContext = 201;

struct Machine {
  std::mutex mutex;  ///< held by every function of the driver.
  EmulatedGpu gpu;
  std::map<std::uintptr_t, std::pair<std::size_t, bool>> memory;  ///< by address: size, on device.
  std::set<void*> registered;                                     ///< host memory.
  std::set<CUstream_st*> streams;
  std::set<CUevent_st*> events;
  std::set<CUmod_st*> modules;
  CUstream_st legacy;
  CUctx_st contexts[16];
  int retained = 0;
  int pushed = 0;  ///< contexts that are current in some thread.
  std::map<std::string, CUfunc_st> kernels;
};

Machine& machine() {
  static Machine all;
  return all;
}

std::vector<Context>& current() {
  thread_local std::vector<Context> contexts;
  return contexts;
}

/// Makes a function of the driver out of a lambda without captures: one call at a time.
template <class R, class... A, class F>
void set(R (*&function)(A...), F) {
  function = [](A... arguments) -> R {
    const std::lock_guard lock(machine().mutex);
    return F{}(arguments...);
  };
}

/// Counts a call. Returns the fault that was asked for, or success.
int called(const char* name) {
  EmulatedGpu& gpu = machine().gpu;
  ++gpu.calls[name];
  const auto fault = gpu.faults.find(name);
  if (fault == gpu.faults.end()) return kSuccess;
  const int status = fault->second;
  gpu.faults.erase(fault);
  return status;
}

/// The same for calls that need a context.
int called_in_context(const char* name) {
  const int status = called(name);
  return status == kSuccess && current().empty() ? kInvalidContext : status;
}

CUstream_st& stream_of(StreamHandle handle) {
  return handle == nullptr ? machine().legacy : *handle;
}

void run_one(CUstream_st& stream) {
  auto work = std::move(stream.work.front());
  stream.work.pop_front();
  work();
}

void run_all(CUstream_st& stream) {
  while (!stream.work.empty()) run_one(stream);
}

/// Runs the stream that recorded an event until it has happened so many times.
void run_until(CUevent_st& event, int times) {
  while (event.done < times) run_one(*event.stream);
}

template <class F>
int give(const char* name, StreamHandle stream, F&& work) {
  const int status = called_in_context(name);
  if (status == kSuccess) stream_of(stream).work.emplace_back(std::forward<F>(work));
  return status;
}

int allocate(const char* name, void** at, std::size_t bytes, bool on_device) {
  if (const int status = called_in_context(name); status != kSuccess) return status;
  if (bytes == 0) return kInvalidValue;
  if (on_device && machine().gpu.allocated_bytes() + bytes > machine().gpu.total_bytes)
    return kOutOfMemory;
  *at = std::aligned_alloc(512, (bytes + 511) / 512 * 512);
  std::memset(*at, 0xee, bytes);
  machine().memory[reinterpret_cast<std::uintptr_t>(*at)] = {bytes, on_device};
  return kSuccess;
}

int give_back(const char* name, void* at) {
  if (const int status = called_in_context(name); status != kSuccess) return status;
  for (CUstream_st* stream : machine().streams) run_all(*stream);
  run_all(machine().legacy);
  if (machine().memory.erase(reinterpret_cast<std::uintptr_t>(at)) == 0) return kInvalidValue;
  std::free(at);
  return kSuccess;
}

/// Threads of an emulated block; they take turns within a phase.
constexpr std::uint32_t kThreads = 3;

/// Calls f(the thread) for all threads of a block.
template <class F>
void all_threads(unsigned block, unsigned blocks, F&& f) {
  for (std::uint32_t thread = 0; thread < kThreads; ++thread)
    f(TileThread{block, blocks, thread, kThreads});
}

void quantise_block(const MatrixLaunch& launch, unsigned block, unsigned blocks) {
  const auto run = [&](const MatrixPair& m, const MatrixTile& tile, std::uint32_t) {
    MatrixShared shared;
    std::memset(&shared, 0xee, sizeof shared);
    const auto phase = [&](auto&& f) { all_threads(block, blocks, f); };
    phase([&](const TileThread& me) { clear_phase(m, tile, shared, me); });
    phase([&](const TileThread& me) { block_amax_phase(m, tile, shared, me); });
    phase([&](const TileThread& me) { scale_phase(m, tile, shared, me); });
    phase([&](const TileThread& me) { encode_phase(m, tile, shared, me); });
  };
  for_each_tile(launch, {block, blocks, 0, 1}, run);
}

/// Writes to `to` what all threads find in phase(most, the thread).
template <class F>
void find_maximum(unsigned block, unsigned blocks, float* to, F&& phase) {
  std::uint32_t most = 0xeeeeeeee;
  all_threads(block, blocks, [&](const TileThread& me) { clear_maximum(most, me); });
  all_threads(block, blocks, [&](const TileThread& me) { phase(most, me); });
  all_threads(block, blocks, [&](const TileThread& me) { write_maximum(to, most, me); });
}

void amax_block(const MatrixLaunch& launch, unsigned block, unsigned blocks) {
  const auto run = [&](const MatrixPair& m, const MatrixTile& tile, std::uint32_t i) {
    find_maximum(block, blocks, launch.amaxes + i,
                 [&](auto& most, const TileThread& me) { tile_amax_phase(m, tile, most, me); });
  };
  for_each_tile(launch, {block, blocks, 0, 1}, run);
}

void maximum_block(const MaximumLaunch& launch, unsigned block, unsigned blocks) {
  for_each_maximum(launch, {block, blocks, 0, 1}, [&](const Maximum& maximum) {
    find_maximum(block, blocks, maximum.to,
                 [&](auto& most, const TileThread& me) { maximum_phase(maximum, most, me); });
  });
}

void dequantise_block(const MatrixLaunch& launch, unsigned block, unsigned blocks) {
  all_threads(block, blocks, [&](const TileThread& me) {
    for_each_tile(launch, me, [&](const MatrixPair& m, const MatrixTile& t, std::uint32_t) {
      decode_phase(m, t, me);
    });
  });
}

void transpose_block(const TransposeLaunch& launch, unsigned block, unsigned blocks) {
  for_each_transpose(launch, {block, blocks, 0, 1},
                     [&](const TransposePiece& piece, const TransposePart& part) {
                       TransposeShared shared;
                       std::memset(&shared, 0xee, sizeof shared);
                       const auto phase = [&](auto&& f) { all_threads(block, blocks, f); };
                       phase([&](const TileThread& me) { load_phase(piece, part, shared, me); });
                       phase([&](const TileThread& me) { store_phase(piece, part, shared, me); });
                     });
}

template <class Launch, class F>
void add_kernel(const char* name, F run_block) {
  machine().kernels[name] = {[run_block](const void* arguments, unsigned block, unsigned blocks) {
                               run_block(*static_cast<const Launch*>(arguments), block, blocks);
                             },
                             sizeof(Launch)};
}

void add_kernels() {
  add_kernel<TileLaunch>(
      kTileKernel, [](const TileLaunch& launch, unsigned block, unsigned blocks) {
        all_threads(block, blocks, [&](const TileThread& me) { run_tiles(launch, me); });
      });
  add_kernel<TransposeLaunch>(kTransposeKernel, transpose_block);
  add_kernel<MatrixLaunch>(kQuantiseKernel, quantise_block);
  add_kernel<MatrixLaunch>(kDequantiseKernel, dequantise_block);
  add_kernel<MatrixLaunch>(kAmaxKernel, amax_block);
  add_kernel<MaximumLaunch>(kMaximumKernel, maximum_block);
}

int launch(Function function, unsigned blocks, unsigned, unsigned, unsigned, unsigned, unsigned,
           unsigned, StreamHandle stream, void** arguments, void**) {
  if (function == nullptr || !function->run) return kInvalidHandle;
  const auto* const first = static_cast<const std::byte*>(arguments[0]);
  const std::vector<std::byte> parameter(first, first + function->bytes);
  return give("cuLaunchKernel", stream, [function, parameter, blocks] {
    for (unsigned block = 0; block < blocks; ++block)
      function->run(parameter.data(), block, blocks);
  });
}

int attribute_of(int attribute) {
  switch (attribute) {
    case kMultiprocessors: return 4;
    case kCapabilityMajor: return 9;
    case kHostPointersOfRegistered: return 1;
    case kSharedBytesPerBlock: return 227 << 10;
    default: return 0;
  }
}

void set_devices(Driver& d) {
  set(d.cuInit, [](unsigned) { return called("cuInit"); });
  set(d.cuDriverGetVersion, [](int* version) {
    *version = 13000;
    return called("cuDriverGetVersion");
  });
  set(d.cuGetErrorName, [](int status, const char** name) {
    *name = status == kOutOfMemory ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_EMULATED";
    return 0;
  });
  set(d.cuGetErrorString, [](int, const char** text) {
    *text = "emulated";
    return 0;
  });
  set(d.cuDeviceGetCount, [](int* count) {
    *count = machine().gpu.num_devices;
    return called("cuDeviceGetCount");
  });
  set(d.cuDeviceGet, [](int* device, int ordinal) {
    *device = ordinal;
    return called("cuDeviceGet");
  });
  set(d.cuDeviceGetName, [](char* name, int bytes, int) {
    std::strncpy(name, "emulated GPU", static_cast<std::size_t>(bytes));
    return called("cuDeviceGetName");
  });
  set(d.cuDeviceGetAttribute, [](int* value, int attribute, int) {
    *value = attribute_of(attribute);
    return called("cuDeviceGetAttribute");
  });
  set(d.cuDevicePrimaryCtxRetain, [](Context* context, int device) {
    *context = &machine().contexts[device];
    (*context)->device = device;
    const int status = called("cuDevicePrimaryCtxRetain");
    if (status == kSuccess) ++machine().retained;
    return status;
  });
  set(d.cuDevicePrimaryCtxRelease, [](int) {
    --machine().retained;
    return called("cuDevicePrimaryCtxRelease");
  });
  set(d.cuCtxPushCurrent, [](Context context) {
    current().push_back(context);
    ++machine().pushed;
    return called("cuCtxPushCurrent");
  });
  set(d.cuCtxPopCurrent, [](Context* context) {
    if (current().empty()) return kInvalidContext;
    *context = current().back();
    current().pop_back();
    --machine().pushed;
    return called("cuCtxPopCurrent");
  });
}

int pointer_attribute(void* value, int attribute, DevicePtr at) {
  if (const int status = called("cuPointerGetAttribute"); status != kSuccess) return status;
  auto found = machine().memory.upper_bound(static_cast<std::uintptr_t>(at));
  if (found == machine().memory.begin()) return kInvalidValue;
  --found;
  if (at >= found->first + found->second.first) return kInvalidValue;
  if (attribute == kMemoryType)
    *static_cast<unsigned*>(value) = found->second.second ? kDeviceMemory : kHostMemory;
  else
    *static_cast<int*>(value) = 0;
  return kSuccess;
}

void set_memory(Driver& d) {
  set(d.cuPointerGetAttribute, [](auto... arguments) { return pointer_attribute(arguments...); });
  set(d.cuMemGetInfo, [](std::size_t* free, std::size_t* total) {
    *total = machine().gpu.total_bytes;
    *free = *total - machine().gpu.allocated_bytes();
    return called_in_context("cuMemGetInfo");
  });
  set(d.cuMemAlloc, [](DevicePtr* at, std::size_t bytes) {
    void* made = nullptr;
    const int status = allocate("cuMemAlloc", &made, bytes, true);
    *at = reinterpret_cast<DevicePtr>(made);
    return status;
  });
  set(d.cuMemFree, [](DevicePtr at) {
    return give_back("cuMemFree", reinterpret_cast<void*>(static_cast<std::uintptr_t>(at)));
  });
  set(d.cuMemHostAlloc, [](void** at, std::size_t bytes, unsigned) {
    return allocate("cuMemHostAlloc", at, bytes, false);
  });
  set(d.cuMemFreeHost, [](void* at) { return give_back("cuMemFreeHost", at); });
  set(d.cuMemHostRegister, [](void* at, std::size_t, unsigned) {
    const int status = called_in_context("cuMemHostRegister");
    if (status != kSuccess) return status;
    return machine().registered.insert(at).second ? static_cast<int>(kSuccess)
                                                  : static_cast<int>(kIsPinned);
  });
  set(d.cuMemHostUnregister, [](void* at) {
    const int status = called_in_context("cuMemHostUnregister");
    if (status != kSuccess) return status;
    return machine().registered.erase(at) == 1 ? static_cast<int>(kSuccess) : kInvalidValue;
  });
  set(d.cuMemcpyAsync, [](DevicePtr to, DevicePtr from, std::size_t bytes, StreamHandle stream) {
    return give("cuMemcpyAsync", stream, [=] {
      std::memcpy(reinterpret_cast<void*>(static_cast<std::uintptr_t>(to)),
                  reinterpret_cast<const void*>(static_cast<std::uintptr_t>(from)), bytes);
    });
  });
  set(d.cuMemsetD8Async,
      [](DevicePtr at, unsigned char value, std::size_t bytes, StreamHandle stream) {
        return give("cuMemsetD8Async", stream, [=] {
          std::memset(reinterpret_cast<void*>(static_cast<std::uintptr_t>(at)), value, bytes);
        });
      });
}

void set_streams(Driver& d) {
  set(d.cuStreamCreate, [](StreamHandle* stream, unsigned) {
    const int status = called_in_context("cuStreamCreate");
    if (status == kSuccess) machine().streams.insert(*stream = new CUstream_st);
    return status;
  });
  set(d.cuStreamDestroy, [](StreamHandle stream) {
    run_all(*stream);
    machine().streams.erase(stream);
    delete stream;
    return called_in_context("cuStreamDestroy");
  });
  set(d.cuStreamQuery, [](StreamHandle stream) {
    run_all(stream_of(stream));
    return called_in_context("cuStreamQuery");
  });
  set(d.cuStreamSynchronize, [](StreamHandle stream) {
    run_all(stream_of(stream));
    return called_in_context("cuStreamSynchronize");
  });
  set(d.cuStreamWaitEvent, [](StreamHandle stream, EventHandle event, unsigned) {
    const int times = event->recorded;
    return give("cuStreamWaitEvent", stream, [=] { run_until(*event, times); });
  });
}

void set_events(Driver& d) {
  set(d.cuEventCreate, [](EventHandle* event, unsigned) {
    const int status = called_in_context("cuEventCreate");
    if (status == kSuccess) machine().events.insert(*event = new CUevent_st);
    return status;
  });
  set(d.cuEventDestroy, [](EventHandle event) {
    run_until(*event, event->recorded);
    machine().events.erase(event);
    delete event;
    return called_in_context("cuEventDestroy");
  });
  set(d.cuEventRecord, [](EventHandle event, StreamHandle stream) {
    const int times = ++event->recorded;
    event->stream = &stream_of(stream);
    return give("cuEventRecord", stream, [=] { event->done = times; });
  });
  set(d.cuEventQuery, [](EventHandle event) {
    const int status = called_in_context("cuEventQuery");
    if (status != kSuccess || event->done == event->recorded) return status;
    run_until(*event, event->recorded);
    return static_cast<int>(kNotReady);  // Done when it is asked for again.
  });
  set(d.cuEventSynchronize, [](EventHandle event) {
    run_until(*event, event->recorded);
    return called_in_context("cuEventSynchronize");
  });
  set(d.cuEventElapsedTime, [](float* milliseconds, EventHandle, EventHandle) {
    *milliseconds = 1;
    return called_in_context("cuEventElapsedTime");
  });
}

void set_kernels(Driver& d) {
  set(d.cuModuleLoadData, [](Module* module, const void*) {
    const int status = called_in_context("cuModuleLoadData");
    if (status == kSuccess) machine().modules.insert(*module = new CUmod_st);
    return status;
  });
  set(d.cuModuleUnload, [](Module module) {
    machine().modules.erase(module);
    delete module;
    return called_in_context("cuModuleUnload");
  });
  set(d.cuModuleGetFunction, [](Function* function, Module, const char* name) {
    const auto found = machine().kernels.find(name);
    if (found == machine().kernels.end()) return kNotFound;
    *function = &found->second;
    return called_in_context("cuModuleGetFunction");
  });
  set(d.cuFuncSetAttribute,
      [](Function, int, int) { return called_in_context("cuFuncSetAttribute"); });
  add_kernels();
  set(d.cuLaunchKernel, [](auto... arguments) { return launch(arguments...); });
}

}  // namespace

void EmulatedGpu::reset() { *this = EmulatedGpu(); }

std::size_t EmulatedGpu::allocated_bytes() const {
  std::size_t bytes = 0;
  for (const auto& [at, block] : machine().memory)
    if (block.second) bytes += block.first;
  return bytes;
}

int EmulatedGpu::num_open() const {
  const Machine& all = machine();
  return static_cast<int>(all.memory.size() + all.registered.size() + all.streams.size() +
                          all.events.size() + all.modules.size()) +
         all.pushed + all.retained;
}

EmulatedGpu& emulated_gpu() { return machine().gpu; }

const Driver& emulated_driver() {
  static const Driver driver = [] {
    Driver d;
    set_devices(d);
    set_memory(d);
    set_streams(d);
    set_events(d);
    set_kernels(d);
    return d;
  }();
  return driver;
}

}  // namespace reshard::cuda
