// SPDX-License-Identifier: Apache-2.0
// The part of the CUDA driver API that reshard calls. The library is loaded at run time, so one
// build serves machines with and without a GPU, and no CUDA header is needed to compile it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "reshard/base/result.h"

// The types that CUDA's own headers declare behind CUcontext, CUstream (and cudaStream_t), CUevent,
// CUmodule and CUfunction: pointers to them pass between reshard and CUDA unchanged.
struct CUctx_st;
struct CUstream_st;
struct CUevent_st;
struct CUmod_st;
struct CUfunc_st;

namespace reshard::cuda {

using Context = CUctx_st*;
using StreamHandle = CUstream_st*;
using EventHandle = CUevent_st*;
using Module = CUmod_st*;
using Function = CUfunc_st*;
using DevicePtr = unsigned long long;  // CUdeviceptr

/// CUresult: the codes that reshard tells apart.
enum Status : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNoDevice = 100,
  kNotReady = 600,
  kIsPinned = 712,
};

/// CUdevice_attribute: those that reshard asks for.
enum Attribute : int {
  kMultiprocessors = 16,
  kCapabilityMajor = 75,
  kCapabilityMinor = 76,
  kHostPointersOfRegistered = 91,  ///< 1: registered host memory has its host addresses.
  kSharedBytesPerBlock = 97,       ///< the most that a kernel may ask for.
};

/// CUpointer_attribute, and CUmemorytype.
enum PointerAttribute : int { kMemoryType = 2, kDeviceOrdinal = 9 };
enum MemoryType : unsigned { kHostMemory = 1, kDeviceMemory = 2 };

/// Flags of functions below.
inline constexpr unsigned kNonBlockingStream = 1, kUntimedEvent = 2, kPortableHostMemory = 1,
                          kMappedHostMemory = 2;

/// The functions, as <cuda.h> declares them; all are set. A test gives its own.
struct Driver {
  int (*cuInit)(unsigned flags) = nullptr;
  int (*cuDriverGetVersion)(int* version) = nullptr;
  int (*cuGetErrorName)(int status, const char** name) = nullptr;
  int (*cuGetErrorString)(int status, const char** text) = nullptr;
  int (*cuDeviceGetCount)(int* count) = nullptr;
  int (*cuDeviceGet)(int* device, int ordinal) = nullptr;
  int (*cuDeviceGetName)(char* name, int bytes, int device) = nullptr;
  int (*cuDeviceGetAttribute)(int* value, int attribute, int device) = nullptr;
  int (*cuDevicePrimaryCtxRetain)(Context* context, int device) = nullptr;
  int (*cuDevicePrimaryCtxRelease)(int device) = nullptr;
  int (*cuCtxPushCurrent)(Context context) = nullptr;
  int (*cuCtxPopCurrent)(Context* context) = nullptr;
  int (*cuPointerGetAttribute)(void* value, int attribute, DevicePtr at) = nullptr;
  int (*cuMemGetInfo)(std::size_t* free, std::size_t* total) = nullptr;
  int (*cuMemAlloc)(DevicePtr* at, std::size_t bytes) = nullptr;
  int (*cuMemFree)(DevicePtr at) = nullptr;
  int (*cuMemHostAlloc)(void** at, std::size_t bytes, unsigned flags) = nullptr;
  int (*cuMemFreeHost)(void* at) = nullptr;
  int (*cuMemHostRegister)(void* at, std::size_t bytes, unsigned flags) = nullptr;
  int (*cuMemHostUnregister)(void* at) = nullptr;
  int (*cuMemcpyAsync)(DevicePtr to, DevicePtr from, std::size_t bytes, StreamHandle) = nullptr;
  int (*cuMemsetD8Async)(DevicePtr at, unsigned char value, std::size_t bytes,
                         StreamHandle) = nullptr;
  int (*cuStreamCreate)(StreamHandle* stream, unsigned flags) = nullptr;
  int (*cuStreamDestroy)(StreamHandle stream) = nullptr;
  int (*cuStreamQuery)(StreamHandle stream) = nullptr;
  int (*cuStreamSynchronize)(StreamHandle stream) = nullptr;
  int (*cuStreamWaitEvent)(StreamHandle stream, EventHandle event, unsigned flags) = nullptr;
  int (*cuEventCreate)(EventHandle* event, unsigned flags) = nullptr;
  int (*cuEventDestroy)(EventHandle event) = nullptr;
  int (*cuEventRecord)(EventHandle event, StreamHandle stream) = nullptr;
  int (*cuEventQuery)(EventHandle event) = nullptr;
  int (*cuEventSynchronize)(EventHandle event) = nullptr;
  int (*cuEventElapsedTime)(float* milliseconds, EventHandle begin, EventHandle end) = nullptr;
  int (*cuModuleLoadData)(Module* module, const void* image) = nullptr;
  int (*cuModuleUnload)(Module module) = nullptr;
  int (*cuModuleGetFunction)(Function* function, Module module, const char* name) = nullptr;
  int (*cuFuncSetAttribute)(Function function, int attribute, int value) = nullptr;
  int (*cuLaunchKernel)(Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                        StreamHandle stream, void** arguments, void** extra) = nullptr;
};

/// Loads libcuda.so.1 and initialises it, once per process; later calls return the same. Errors:
/// `unsupported` if there is no driver, it lacks a function (named), or there is no GPU.
Result<const Driver*> load_driver();

/// Success, or an error with the name and text of a CUresult. `what` names the call and what it was
/// for: "cuMemAlloc of 64 bytes".
Result<> check(const Driver& driver, int status, std::string_view what);

}  // namespace reshard::cuda
