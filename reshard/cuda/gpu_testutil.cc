// SPDX-License-Identifier: Apache-2.0
#include "reshard/cuda/gpu_testutil.h"

#include <fmt/format.h>

#include <cstdlib>

#include "reshard/base/check.h"
#include "reshard/cuda/driver.h"
#include "reshard/cuda/emulated_gpu_testutil.h"
#include "reshard/cuda/kernel_image.h"
#include "reshard/cuda/stream.h"

namespace reshard::cuda {
namespace {

constexpr std::byte kEmulatedImage[] = {std::byte{1}};

template <class T>
T expected(Result<T> result) {
  RESHARD_CHECK(result.has_value());
  return *std::move(result);
}

}  // namespace

bool is_emulated() {
  const char* number = std::getenv("RESHARD_TEST_GPU");
  return number == nullptr || *number == '\0';
}

std::shared_ptr<const Device> gpu_under_test() {
  if (is_emulated())
    return expected(Device::open(emulated_driver(), 0, {.main = kEmulatedImage, .portable = {}}));
  static const auto gpu = [] {
    const int number = std::atoi(std::getenv("RESHARD_TEST_GPU"));
    auto driver = load_driver();
    auto opened = driver ? Device::open(**driver, number) : tl::unexpected(driver.error());
    if (!opened) fmt::print(stderr, "RESHARD_TEST_GPU: {}\n", opened.error().message);
    return expected(std::move(opened));
  }();
  return gpu;
}

void write_to_gpu(const std::shared_ptr<const Device>& gpu, std::byte* at,
                  std::span<const std::byte> bytes) {
  const Stream stream = expected(Stream::make(gpu));
  RESHARD_CHECK(stream.copy(at, bytes.data(), static_cast<Index>(bytes.size())).has_value());
  RESHARD_CHECK(stream.synchronize().has_value());
}

std::vector<std::byte> read_from_gpu(const std::shared_ptr<const Device>& gpu, const std::byte* at,
                                     std::size_t bytes) {
  const Stream stream = expected(Stream::make(gpu));
  std::vector<std::byte> out(bytes);
  RESHARD_CHECK(stream.copy(out.data(), at, static_cast<Index>(bytes)).has_value());
  RESHARD_CHECK(stream.synchronize().has_value());
  return out;
}

}  // namespace reshard::cuda
