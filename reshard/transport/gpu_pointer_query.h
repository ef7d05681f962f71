// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "reshard/base/result.h"

namespace reshard {

/// The functions of the CUDA driver that a transport needs, as <cuda.h> declares them; all are set.
/// A test gives its own.
struct GpuDriver {
  int (*cuInit)(unsigned flags) = nullptr;
  int (*cuDeviceGetCount)(int* count) = nullptr;
  int (*cuDeviceGet)(int* device, int ordinal) = nullptr;
  int (*cuDevicePrimaryCtxRetain)(void** context, int device) = nullptr;
  int (*cuDevicePrimaryCtxRelease)(int device) = nullptr;
  int (*cuCtxPushCurrent)(void* context) = nullptr;
  int (*cuCtxPopCurrent)(void** context) = nullptr;
  int (*cuPointerGetAttribute)(void* value, int attribute, unsigned long long at) = nullptr;
};

/// Tells the memory of GPUs from host memory, for a transport whose library moves both, and makes
/// a GPU current while that library runs. Transports see nothing else of CUDA, and load the driver
/// at run time. Any thread may call.
class GpuPointerQuery {
 public:
  /// Retains the primary context of GPU `ordinal`, as CUDA counts those that this process sees.
  /// Errors: `unsupported` if there is no driver or no GPU at all; `not_found` if there is no such
  /// GPU; `io` with the number of the driver's error.
  static Result<std::unique_ptr<GpuPointerQuery>> open(int ordinal);
  /// The same with another driver, which must outlive the object.
  static Result<std::unique_ptr<GpuPointerQuery>> open(const GpuDriver& driver, int ordinal);
  /// open(), or null where no memory can be on a GPU: without a driver or GPU, or if `ordinal` is
  /// -1. Errors: the others of open().
  static Result<std::unique_ptr<GpuPointerQuery>> open_if_any(int ordinal);
  /// Why open() cannot work on this machine, or "". Makes no context.
  static std::string unavailable_reason();
  ~GpuPointerQuery();
  GpuPointerQuery(const GpuPointerQuery&) = delete;
  GpuPointerQuery& operator=(const GpuPointerQuery&) = delete;

  /// True if the byte at this address is in the memory of any GPU, so that host code must not touch
  /// it. One call of the driver. Pinned host memory is host memory, managed memory a GPU's.
  bool contains(const void* at) const;
  /// True if contains(at) and the driver moves that memory between GPU and host.
  bool is_managed(const void* at) const;

  /// Makes the GPU current in this thread while it lives, and then what was current before.
  class Current {
   public:
    /// Does nothing without a GPU.
    explicit Current(const GpuPointerQuery* gpu);
    ~Current();
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;

   private:
    const GpuDriver* driver_;  ///< null if nothing was pushed.
  };

 private:
  explicit GpuPointerQuery(const GpuDriver& driver) : driver_(driver) {}
  bool attribute(int which, const void* at, unsigned& value) const;

  const GpuDriver& driver_;
  int device_ = 0;
  void* context_ = nullptr;
};

}  // namespace reshard
