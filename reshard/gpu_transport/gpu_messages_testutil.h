// SPDX-License-Identifier: Apache-2.0
// The conformance suite with its messages in the memory of a GPU.
#pragma once

#include <dlfcn.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <string>

#include "reshard/base/check.h"
#include "reshard/cuda/gpu_testutil.h"
#include "reshard/cuda/memory.h"
#include "reshard/transport/testing/message_memory_testutil.h"

namespace reshard {

/// Memory of gpu_under_test(), for TransportUnderTest::memory.
class GpuMessageMemory : public MessageMemory {
 public:
  std::shared_ptr<std::byte> allocate(std::size_t bytes) override {
    auto made = cuda::Buffer::on_device(gpu_, static_cast<Index>(bytes));
    RESHARD_CHECK(made.has_value());
    auto buffer = std::make_shared<cuda::Buffer>(*std::move(made));
    std::byte* const at = buffer->data();
    return {std::move(buffer), at};
  }
  void write(std::byte* to, std::span<const std::byte> from) override {
    if (!from.empty()) cuda::write_to_gpu(gpu_, to, from);
  }
  void read(std::span<std::byte> to, const std::byte* from) override {
    if (to.empty()) return;
    const Bytes bytes = cuda::read_from_gpu(gpu_, from, to.size());
    std::memcpy(to.data(), bytes.data(), bytes.size());
  }

 private:
  std::shared_ptr<const cuda::Device> gpu_ = cuda::gpu_under_test();
};

inline MessageMemories gpu_memories() {
  const auto gpu = std::make_shared<GpuMessageMemory>();
  return {gpu, gpu};
}
inline MessageMemories gpu_to_host_memories() {
  return {std::make_shared<GpuMessageMemory>(), host_memories().recvs};
}
inline MessageMemories host_to_gpu_memories() {
  return {host_memories().sends, std::make_shared<GpuMessageMemory>()};
}

/// Names a file of kernels that has none: the emulated GPU has its own, and a build without nvcc no
/// others.
inline void name_empty_kernel_image() {
  constexpr std::uint8_t kHeader[] = {0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  const int file = memfd_create("kernels", 0);
  RESHARD_CHECK(write(file, kHeader, sizeof kHeader) == ssize_t{sizeof kHeader});
  setenv("RESHARD_CUDA_IMAGE", ("/proc/self/fd/" + std::to_string(file)).c_str(), 1);
}

/// Unless RESHARD_TEST_GPU names a real GPU, makes the driver that this process loads the stand-in
/// at this path, and gpu_under_test() its GPU 0. True if so. To be called before anything loads a
/// driver.
inline bool load_emulated_driver(const char* path) {
  if (!cuda::is_emulated()) return false;
  RESHARD_CHECK(dlopen(path, RTLD_NOW | RTLD_LOCAL) != nullptr);
  setenv("RESHARD_TEST_GPU", "0", 1);
  name_empty_kernel_image();
  return true;
}

}  // namespace reshard
