// SPDX-License-Identifier: Apache-2.0
// The part of the CUDA driver API that reshard calls. The library is loaded at run time, so one
// build serves machines with and without a GPU, and no CUDA header is needed to compile it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "reshard/base/result.h"
#include "reshard/cuda/handles.h"

/// CUipcMemHandle, CUmemFabricHandle: bytes that another process opens.
struct CUipcMemHandle_st {
  char reserved[64];
};

namespace reshard::cuda {

using DevicePtr = unsigned long long;     // CUdeviceptr
using MemoryHandle = unsigned long long;  // CUmemGenericAllocationHandle
using IpcHandle = CUipcMemHandle_st;

/// CUresult: the codes that reshard tells apart.
enum Status : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNoDevice = 100,
  kInvalidImage = 200,
  kNoBinaryForGpu = 209,
  kInvalidPtx = 218,
  kUnsupportedPtxVersion = 222,
  kNotReady = 600,
  kPeerAccessEnabled = 704,
  kIsPinned = 712,  ///< cuMemHostRegister() of memory of which it has a part.
  kNotPermitted = 800,
  kNotSupported = 801,
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
enum PointerAttribute : int {
  kMemoryType = 2,
  kBufferId = 7,  ///< unsigned long long: of the allocation, never reused in the process.
  kDeviceOrdinal = 9,
  kRangeBegin = 11,  ///< CUdeviceptr: of the allocation or registration.
  kRangeBytes = 12,  ///< size_t: of it.
  kIpcCapable = 10,  ///< unsigned: 1 for memory of cuMemAlloc(), which cuIpcGetMemHandle() takes.
  kIsMapped = 13,    ///< unsigned: 1 if the address has memory.
  kMemoryBlockId = 20,  ///< unsigned long long: of the physical memory; only new drivers know it.
};
enum MemoryType : unsigned { kHostMemory = 1, kDeviceMemory = 2 };

/// CUmemAllocationHandleType.
enum HandleType : int { kNoHandle = 0, kFileHandle = 1, kFabricHandle = 8 };
/// CUmemLocation of a GPU.
struct MemoryLocation {
  int type = 1;  ///< CU_MEM_LOCATION_TYPE_DEVICE
  int device = 0;
};
/// CUmemAllocationProp of the memory of a GPU.
struct MemoryProperties {
  int type = 1;                  ///< CU_MEM_ALLOCATION_TYPE_PINNED
  int handle_types = kNoHandle;  ///< of HandleType, or several.
  MemoryLocation location;
  void* windows = nullptr;
  unsigned char flags[8] = {};
};
/// CUmemAccessDesc.
struct MemoryAccess {
  MemoryLocation location;
  int flags = 3;  ///< CU_MEM_ACCESS_FLAGS_PROT_READWRITE
};
static_assert(sizeof(MemoryProperties) == 32 && sizeof(MemoryAccess) == 12);

/// Flags of functions below.
inline constexpr unsigned kNonBlockingStream = 1, kUntimedEvent = 2, kPortableHostMemory = 1,
                          kMappedHostMemory = 2, kEnablePeerAccess = 1;

/// The functions, as <cuda.h> declares them. All are set but those that say "optional". A test
/// gives its own.
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

  // Optional: sharing memory with other processes and GPUs. Null if the driver lacks them.
  int (*cuPointerGetAttributes)(unsigned count, int* attributes, void** values,
                                DevicePtr at) = nullptr;
  int (*cuMemGetAddressRange)(DevicePtr* base, std::size_t* bytes, DevicePtr at) = nullptr;
  int (*cuIpcGetMemHandle)(IpcHandle* handle, DevicePtr at) = nullptr;
  int (*cuIpcOpenMemHandle)(DevicePtr* at, IpcHandle handle, unsigned flags) = nullptr;
  int (*cuIpcCloseMemHandle)(DevicePtr at) = nullptr;
  int (*cuDeviceCanAccessPeer)(int* can, int device, int peer) = nullptr;
  int (*cuCtxEnablePeerAccess)(Context peer, unsigned flags) = nullptr;
  int (*cuMemCreate)(MemoryHandle* handle, std::size_t bytes, const MemoryProperties* properties,
                     unsigned long long flags) = nullptr;
  int (*cuMemRelease)(MemoryHandle handle) = nullptr;
  int (*cuMemRetainAllocationHandle)(MemoryHandle* handle, void* at) = nullptr;
  int (*cuMemGetAllocationPropertiesFromHandle)(MemoryProperties* properties,
                                                MemoryHandle handle) = nullptr;
  int (*cuMemGetAllocationGranularity)(std::size_t* bytes, const MemoryProperties* properties,
                                       int option) = nullptr;
  int (*cuMemExportToShareableHandle)(void* to, MemoryHandle handle, int type,
                                      unsigned long long flags) = nullptr;
  int (*cuMemImportFromShareableHandle)(MemoryHandle* handle, void* from, int type) = nullptr;
  int (*cuMemAddressReserve)(DevicePtr* at, std::size_t bytes, std::size_t alignment,
                             DevicePtr wanted, unsigned long long flags) = nullptr;
  int (*cuMemAddressFree)(DevicePtr at, std::size_t bytes) = nullptr;
  int (*cuMemMap)(DevicePtr at, std::size_t bytes, std::size_t offset, MemoryHandle handle,
                  unsigned long long flags) = nullptr;
  int (*cuMemUnmap)(DevicePtr at, std::size_t bytes) = nullptr;
  int (*cuMemSetAccess)(DevicePtr at, std::size_t bytes, const MemoryAccess* access,
                        std::size_t count) = nullptr;
};

/// Loads libcuda.so.1 and initialises it, once per process; later calls return the same. Errors:
/// `unsupported` if there is no driver, it lacks a function (named), or there is no GPU.
Result<const Driver*> load_driver();

/// Success, or an error with the name and text of a CUresult. `what` names the call and what it was
/// for: "cuMemAlloc of 64 bytes".
Result<> check(const Driver& driver, int status, std::string_view what);

}  // namespace reshard::cuda
