// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <type_traits>

#include "reshard/base/result.h"
#include "reshard/cuda/handles.h"

namespace reshard::cuda {

struct Driver;
struct KernelImages;

/// A GPU, and its primary context, which torch and the CUDA runtime use too. Any thread may call;
/// each call makes the context current and restores the caller's before it returns.
class Device {
 public:
  /// Retains the primary context of GPU `ordinal`, as CUDA counts those that it sees
  /// (CUDA_VISIBLE_DEVICES), with the code of chosen_kernel_images(). Errors: `not_found` if there
  /// is no such GPU; those of load_driver() and chosen_kernel_images(); the driver's.
  static Result<std::shared_ptr<const Device>> open(int ordinal);
  /// The same through a given driver, which must outlive the device.
  static Result<std::shared_ptr<const Device>> open(const Driver& driver, int ordinal);
  /// The same with other code for its kernels, which must outlive the device.
  static Result<std::shared_ptr<const Device>> open(const Driver& driver, int ordinal,
                                                    const KernelImages& images);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const Driver& driver() const { return driver_; }
  int ordinal() const { return ordinal_; }
  /// "NVIDIA H200".
  const std::string& name() const { return name_; }
  int multiprocessors() const { return multiprocessors_; }
  /// Compute capability times ten: 90 for Hopper.
  int capability() const { return capability_; }
  /// Kernels use pinned host memory at its host addresses.
  bool uses_host_addresses() const { return uses_host_addresses_; }
  /// The most shared memory that a thread block may have. Bytes.
  int shared_bytes_per_block() const { return shared_bytes_per_block_; }

  /// A kernel of the images, of which the first that the driver takes is loaded in the first call.
  /// Errors: `unsupported` if this build has no code for GPUs, or none that the driver takes for
  /// this one (says which driver would); the driver's.
  Result<Function> kernel(const char* name) const;

  /// Lets kernels of this GPU use memory of cuMemAlloc() of another, from now on. Errors:
  /// `unsupported` if it cannot (says which); the driver's.
  Result<> enable_peer_access(int ordinal) const;

  /// Calls f() with the context current; f returns a CUresult. `what` as for check().
  template <class F>
  Result<> call(std::string_view what, F&& f) const {
    const auto run = [](void* g) -> int {
      return (*static_cast<std::remove_reference_t<F>*>(g))();
    };
    return call_with_context(what, run, std::addressof(f));
  }

 private:
  Device(const Driver& driver, int ordinal, const KernelImages& images);
  Result<> call_with_context(std::string_view what, int (*run)(void*), void* f) const;
  Result<> describe();
  Result<Module> load_images() const;

  const Driver& driver_;
  const std::unique_ptr<const KernelImages> images_;
  int ordinal_, device_ = 0;
  Context context_ = nullptr;
  std::string name_;
  int multiprocessors_ = 0, capability_ = 0, shared_bytes_per_block_ = 0;
  bool uses_host_addresses_ = false;
  mutable std::mutex mutex_;
  mutable Module module_ = nullptr;  ///< guarded by mutex_.
};

}  // namespace reshard::cuda
