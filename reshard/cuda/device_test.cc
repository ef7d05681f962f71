// SPDX-License-Identifier: Apache-2.0
// Devices, memory, streams and events, on an emulated GPU.
#include "reshard/cuda/device.h"
#include "reshard/cuda/driver.h"
#include "reshard/cuda/kernel_image.h"

#include <gtest/gtest.h>

#include <vector>

#include "reshard/cuda/emulated_gpu_testutil.h"
#include "reshard/cuda/memory.h"
#include "reshard/cuda/stream.h"
#include "reshard/cuda/tiles/tiles.h"

namespace reshard::cuda {
namespace {

class Gpu : public ::testing::Test {
 protected:
  Gpu() { emulated_gpu().reset(); }
  ~Gpu() override {
    device_.reset();
    EXPECT_EQ(emulated_gpu().num_open(), 0);
  }

  static constexpr std::byte kImage[] = {std::byte{1}};
  std::shared_ptr<const Device> device_ =
      Device::open(emulated_driver(), 0, {.main = kImage, .portable = {}}).value();
};

TEST_F(Gpu, DescribesItself) {
  EXPECT_EQ(device_->name(), "emulated GPU");
  EXPECT_EQ(device_->capability(), 90);
  EXPECT_EQ(device_->multiprocessors(), 4);
  EXPECT_EQ(device_->shared_bytes_per_block(), 227 << 10);
}

TEST_F(Gpu, NamesTheGpusThatAreThere) {
  const auto opened = Device::open(emulated_driver(), 7, {.main = kImage, .portable = {}});
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Code::not_found);
  EXPECT_EQ(opened.error().message, "GPU 7: CUDA sees 2, counted from 0");
}

TEST_F(Gpu, KernelsAreLoadedOnce) {
  ASSERT_TRUE(device_->kernel(kTileKernel));
  ASSERT_TRUE(device_->kernel(kTileKernel));
  EXPECT_EQ(emulated_gpu().calls["cuModuleLoadData"], 1);
  EXPECT_FALSE(device_->kernel("no_such_kernel"));
}

TEST_F(Gpu, ABuildWithoutKernelsSaysSo) {
  const auto device = Device::open(emulated_driver(), 1, {}).value();
  const auto kernel = device->kernel(kTileKernel);
  ASSERT_FALSE(kernel);
  EXPECT_EQ(kernel.error().code, Code::unsupported);
  EXPECT_NE(kernel.error().message.find("nvcc"), std::string::npos);
}

TEST_F(Gpu, ACodeImageForOtherGpusIsAnError) {
  emulated_gpu().faults["cuModuleLoadData"] = 209;
  const auto kernel = device_->kernel(kTileKernel);
  ASSERT_FALSE(kernel);
  EXPECT_EQ(kernel.error().code, Code::unsupported);
  for (const char* said : {"compute capability 9.0", "(of CUDA 13.0)", "(209)", "from 525 on"})
    EXPECT_NE(kernel.error().message.find(said), std::string::npos) << kernel.error().message;
}

TEST_F(Gpu, ADriverThatRefusesTheMainImageTakesThePortableOne) {
  for (const int refusal : {200, 209, 218, 222}) {
    emulated_gpu().reset();
    const auto device =
        Device::open(emulated_driver(), 0, {.main = kImage, .portable = kImage}).value();
    emulated_gpu().faults["cuModuleLoadData"] = refusal;
    EXPECT_TRUE(device->kernel(kTileKernel)) << refusal;
    EXPECT_EQ(emulated_gpu().calls["cuModuleLoadData"], 2);
  }
}

TEST_F(Gpu, OtherErrorsOfLoadingAreNoRefusals) {
  const auto device =
      Device::open(emulated_driver(), 0, {.main = kImage, .portable = kImage}).value();
  emulated_gpu().faults["cuModuleLoadData"] = 2;
  EXPECT_EQ(device->kernel(kTileKernel).error().message.substr(0, 16), "cuModuleLoadData");
  EXPECT_EQ(emulated_gpu().calls["cuModuleLoadData"], 1);
}

TEST_F(Gpu, TheCallersContextIsRestored) {
  const auto other = Device::open(emulated_driver(), 1, {.main = kImage, .portable = {}}).value();
  ASSERT_TRUE(other->call("outer", [&] {
    EXPECT_TRUE(Buffer::on_device(device_, 64));
    Context current = nullptr;
    EXPECT_EQ(emulated_driver().cuCtxPopCurrent(&current), kSuccess);
    EXPECT_EQ(emulated_driver().cuCtxPushCurrent(current), kSuccess);
    return kSuccess;
  }));
}

TEST_F(Gpu, MemoryIsGivenBack) {
  {
    const auto device_buffer = Buffer::on_device(device_, 1000);
    auto pinned = Buffer::pinned(device_, 1000);
    ASSERT_TRUE(device_buffer);
    ASSERT_TRUE(pinned);
    EXPECT_TRUE(pinned->is_pinned());
    EXPECT_EQ(emulated_gpu().allocated_bytes(), 1000U);
    const Buffer moved = std::move(*pinned);
    EXPECT_EQ(moved.size(), 1000);
  }
  EXPECT_EQ(emulated_gpu().allocated_bytes(), 0U);
}

TEST_F(Gpu, ShortMemorySaysWhatWasAskedForAndWhatIsFree) {
  emulated_gpu().total_bytes = 1 << 20;
  const auto buffer = Buffer::on_device(device_, 1 << 21);
  ASSERT_FALSE(buffer);
  EXPECT_EQ(buffer.error().message,
            "cuMemAlloc of 2097152 bytes: CUDA_ERROR_OUT_OF_MEMORY (2): emulated (1048576 of "
            "1048576 bytes are free on GPU 0, emulated GPU)");
  EXPECT_FALSE(Buffer::on_device(device_, -1));
  EXPECT_TRUE(Buffer::on_device(device_, 0)->data() == nullptr);
}

TEST_F(Gpu, KnowsWhereMemoryLies) {
  const auto on_device = Buffer::on_device(device_, 100).value();
  const auto pinned = Buffer::pinned(device_, 100).value();
  const int on_stack = 0;
  EXPECT_EQ(memory_kind(*device_, on_device.data() + 99), (MemoryKind{true, 0}));
  EXPECT_EQ(memory_kind(*device_, pinned.data()), MemoryKind{});
  EXPECT_EQ(memory_kind(*device_, &on_stack), MemoryKind{});
}

/// Reads `bytes` bytes of a buffer of `size` on a stream, and waits for that.
void read_of(const std::shared_ptr<const Device>& device, Index size, Index bytes) {
  const Buffer buffer = Buffer::on_device(device, size).value();
  const Stream stream = Stream::make(device).value();
  std::vector<std::byte> out(static_cast<std::size_t>(bytes));
  ASSERT_TRUE(stream.copy(out.data(), buffer.data(), bytes));
  ASSERT_TRUE(stream.synchronize());
}

TEST_F(Gpu, WorkThatLeavesAnAllocationIsFound) {
  read_of(device_, 512, 512);
  EXPECT_DEATH(read_of(device_, 512, 513), "");
  EXPECT_DEATH(read_of(device_, 8192, 8193), "");
#ifdef __SANITIZE_ADDRESS__
  EXPECT_DEATH(read_of(device_, 100, 101), "");
#endif
}

TEST_F(Gpu, StreamsRunTheirWorkInOrder) {
  const Stream stream = Stream::make(device_).value();
  const Buffer bytes = Buffer::on_device(device_, 8).value();
  std::vector<std::byte> out(8);
  ASSERT_TRUE(stream.fill(bytes.data(), std::byte{1}, 8));
  ASSERT_TRUE(stream.fill(bytes.data() + 4, std::byte{2}, 4));
  ASSERT_TRUE(stream.copy(out.data(), bytes.data(), 8));
  ASSERT_TRUE(stream.synchronize());
  EXPECT_EQ(out[3], std::byte{1});
  EXPECT_EQ(out[4], std::byte{2});
}

TEST_F(Gpu, AStreamWaitsForAnEventOfAnother) {
  const Stream first = Stream::make(device_).value(), second = Stream::make(device_).value();
  const Event filled = Event::make(device_).value(), done = Event::make(device_).value();
  const Buffer bytes = Buffer::on_device(device_, 8).value();
  std::vector<std::byte> out(8);
  ASSERT_TRUE(first.fill(bytes.data(), std::byte{3}, 8));
  ASSERT_TRUE(filled.record(first));
  ASSERT_TRUE(filled.hold(second));
  ASSERT_TRUE(second.copy(out.data(), bytes.data(), 8));
  ASSERT_TRUE(done.record(second));
  EXPECT_FALSE(*done.is_done());
  EXPECT_TRUE(*done.is_done());
  EXPECT_EQ(out[0], std::byte{3});
}

TEST_F(Gpu, AnEventMayGoBeforeTheWorkThatWaitsForIt) {
  const Stream first = Stream::make(device_).value(), second = Stream::make(device_).value();
  const Buffer bytes = Buffer::on_device(device_, 8).value(),
               out = Buffer::pinned(device_, 8).value();
  {
    const Event filled = Event::make(device_).value();
    ASSERT_TRUE(first.fill(bytes.data(), std::byte{5}, 8));
    ASSERT_TRUE(filled.record(first));
    ASSERT_TRUE(filled.hold(second));
  }
  ASSERT_TRUE(second.copy(out.data(), bytes.data(), 8));
  ASSERT_TRUE(second.synchronize());
  EXPECT_EQ(out.data()[0], std::byte{5});
}

TEST_F(Gpu, ErrorsOfEarlierWorkAreReported) {
  const Stream stream = Stream::make(device_).value();
  emulated_gpu().faults["cuStreamSynchronize"] = 700;
  const auto waited = stream.synchronize();
  ASSERT_FALSE(waited);
  EXPECT_EQ(waited.error().message, "cuStreamSynchronize: CUDA_ERROR_EMULATED (700): emulated");
}

TEST(LoadDriver, SaysWhyThereIsNone) {
  const auto driver = load_driver();
  if (driver) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_EQ(driver.error().code, Code::unsupported);
  EXPECT_NE(driver.error().message.find("NVIDIA"), std::string::npos) << driver.error().message;
}

}  // namespace
}  // namespace reshard::cuda
