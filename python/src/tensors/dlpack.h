// SPDX-License-Identifier: Apache-2.0
// The parts of DLPack 1.3 that nanobind does not declare: managed tensors with a version, and the
// table of C functions that a tensor type may carry.
#pragma once

#include <nanobind/ndarray.h>

#include <cstdint>

namespace reshard::python::dlpack {

using Tensor = nanobind::dlpack::dltensor;
using DataType = nanobind::dlpack::dtype;
using Device = nanobind::dlpack::device;
using Code = nanobind::dlpack::dtype_code;

struct Version {
  std::uint32_t major = 0, minor = 0;
};

/// In a capsule "dltensor".
struct Managed {
  Tensor tensor;
  void* context = nullptr;
  void (*deleter)(Managed*) = nullptr;
};

/// In a capsule "dltensor_versioned".
struct VersionedManaged {
  Version version;
  void* context = nullptr;
  void (*deleter)(VersionedManaged*) = nullptr;
  std::uint64_t flags = 0;
  Tensor tensor;
};
inline constexpr std::uint64_t kReadOnly = 1, kIsCopied = 2;  ///< of VersionedManaged::flags.

/// The capsule "dlpack_exchange_api" of a type with the attribute `__dlpack_c_exchange_api__`.
struct ExchangeTable {
  Version version;
  ExchangeTable* previous = nullptr;  ///< an older major version.
  void* allocate = nullptr;
  void* managed_from_object = nullptr;
  void* object_from_managed = nullptr;
  /// Describes an object's tensor, which stays the object's. -1: a Python exception is set.
  int (*tensor_from_object)(void* object, Tensor* out) = nullptr;
  /// The stream of a device on which the library works now. -1: a Python exception is set.
  int (*current_stream)(std::int32_t device_type, std::int32_t device_id, void** out) = nullptr;
};

// Types of devices whose memory the processor reaches by plain loads and stores.
inline constexpr std::int32_t kCpu = 1, kCudaHost = 3, kRocmHost = 11;
/// The memory of an NVIDIA GPU.
inline constexpr std::int32_t kCuda = 2;

}  // namespace reshard::python::dlpack
