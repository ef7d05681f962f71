// SPDX-License-Identifier: Apache-2.0
#include "reshard/cuda/emulated_gpu_testutil.h"

#include <cstring>

#include "reshard/cuda/driver.h"
#include "reshard/cuda/emulated_machine_testutil.h"

namespace reshard::cuda {

Machine& machine() {
  static Machine all;
  return all;
}

std::vector<Context>& current() {
  thread_local std::vector<Context> contexts;
  return contexts;
}

int called(const char* name) {
  EmulatedGpu& gpu = machine().gpu;
  ++gpu.calls[name];
  const auto fault = gpu.faults.find(name);
  if (fault == gpu.faults.end()) return kSuccess;
  const int status = fault->second;
  gpu.faults.erase(fault);
  return status;
}

int called_in_context(const char* name) {
  const int status = called(name);
  return status == kSuccess && current().empty() ? kInvalidContext : status;
}

CUstream_st& stream_of(StreamHandle handle) {
  return handle == nullptr ? machine().legacy : *handle;
}

namespace {

/// Runs the front of a stream. False: it is not done yet.
bool run_one(CUstream_st& stream) {
  if (!stream.work.front()()) return false;
  stream.work.pop_front();
  return true;
}

}  // namespace

bool run_all(CUstream_st& stream) {
  while (!stream.work.empty())
    if (!run_one(stream)) return false;
  return true;
}

bool run_until(CUevent_st& event, int times) {
  while (event.done < times)
    if (!run_one(*event.stream)) return false;
  return true;
}

void give_emulated_work(StreamHandle stream, std::function<bool()> work) {
  const std::lock_guard lock(machine().mutex);
  stream_of(stream).work.push_back(std::move(work));
}

namespace {

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

void set_streams(Driver& d) {
  set(d.cuStreamCreate, [](StreamHandle* stream, unsigned) {
    const int status = called_in_context("cuStreamCreate");
    if (status != kSuccess) return status;
    machine().streams.insert(*stream = new CUstream_st);
    (*stream)->device = current().back()->device;
    return status;
  });
  set(d.cuStreamDestroy, [](StreamHandle stream) {
    block_until([&] { return run_all(*stream); });
    machine().streams.erase(stream);
    delete stream;
    return called_in_context("cuStreamDestroy");
  });
  set(d.cuStreamQuery, [](StreamHandle stream) {
    const bool is_done = run_all(stream_of(stream));
    const int status = called_in_context("cuStreamQuery");
    return status == kSuccess && !is_done ? static_cast<int>(kNotReady) : status;
  });
  set(d.cuStreamSynchronize, [](StreamHandle stream) {
    block_until([&] { return run_all(stream_of(stream)); });
    return called_in_context("cuStreamSynchronize");
  });
  set(d.cuStreamWaitEvent, [](StreamHandle stream, EventHandle event, unsigned) {
    const int times = event->recorded;
    return give("cuStreamWaitEvent", stream, [=] { return run_until(*event, times); });
  });
}

void set_events(Driver& d) {
  set(d.cuEventCreate, [](EventHandle* event, unsigned) {
    const int status = called_in_context("cuEventCreate");
    if (status == kSuccess) machine().events.insert(*event = new CUevent_st);
    return status;
  });
  set(d.cuEventDestroy, [](EventHandle event) {
    block_until([&] { return run_until(*event, event->recorded); });
    machine().events.erase(event);
    machine().ended_events.emplace_back(event);  // Work that streams have yet may wait for it.
    return called_in_context("cuEventDestroy");
  });
  set(d.cuEventRecord, [](EventHandle event, StreamHandle stream) {
    const int times = event->recorded + 1;
    const int status = give("cuEventRecord", stream, [=] { event->done = times; });
    if (status != kSuccess) return status;
    event->recorded = times;
    event->stream = &stream_of(stream);
    return status;
  });
  set(d.cuEventQuery, [](EventHandle event) {
    const int status = called_in_context("cuEventQuery");
    if (status != kSuccess || event->done == event->recorded) return status;
    run_until(*event, event->recorded);
    return static_cast<int>(kNotReady);  // Done when it is asked for again.
  });
  set(d.cuEventSynchronize, [](EventHandle event) {
    block_until([&] { return run_until(*event, event->recorded); });
    return called_in_context("cuEventSynchronize");
  });
  set(d.cuEventElapsedTime, [](float* milliseconds, EventHandle, EventHandle) {
    *milliseconds = 1;
    return called_in_context("cuEventElapsedTime");
  });
}

}  // namespace

void EmulatedGpu::reset() { *this = EmulatedGpu(); }

std::size_t EmulatedGpu::allocated_bytes() const {
  std::map<std::uint64_t, std::size_t> bytes;  // By memory, which may be mapped twice.
  for (const auto& [at, range] : machine().memory)
    if (range.kind == KnownRange::Kind::allocated)
      bytes[range.pages->id] = range.bytes;
    else if (range.pages != nullptr && range.pages->is_own)
      bytes[range.pages->id] = range.pages->bytes;
  for (const auto& [handle, memory] : machine().handles)
    if (memory.first->is_own) bytes[memory.first->id] = memory.first->bytes;
  std::size_t all = 0;
  for (const auto& [id, of] : bytes) all += of;
  return all;
}

int EmulatedGpu::num_open() const {
  const Machine& all = machine();
  return static_cast<int>(all.memory.size() + all.reserved.size() + all.handles.size() +
                          all.streams.size() + all.events.size() + all.modules.size()) +
         all.pushed + all.retained;
}

EmulatedGpu& emulated_gpu() { return machine().gpu; }

void set_emulated_devices(int count) {
  const std::lock_guard lock(machine().mutex);
  machine().gpu.num_devices = count;
}

const Driver& emulated_driver() {
  static const Driver driver = [] {
    Driver d;
    set_devices(d);
    set_memory(d);
    set_sharing(d);
    set_streams(d);
    set_events(d);
    set_kernels(d);
    return d;
  }();
  return driver;
}

}  // namespace reshard::cuda
