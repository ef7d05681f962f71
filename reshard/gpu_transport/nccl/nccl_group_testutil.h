// SPDX-License-Identifier: Apache-2.0
// Groups of ranks that are threads, each with an emulated GPU, over the model of NCCL.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "reshard/cuda/driver.h"
#include "reshard/cuda/emulated_gpu_testutil.h"
#include "reshard/cuda/gpu_testutil.h"
#include "reshard/cuda/memory.h"
#include "reshard/gpu_transport/nccl/nccl_model_testutil.h"
#include "reshard/gpu_transport/nccl/transport.h"
#include "reshard/transport/inproc/inproc.h"
#include "reshard/transport/testing/conformance_ranks_testutil.h"

namespace reshard::nccl {

/// The emulated GPU of a rank.
inline std::shared_ptr<const cuda::Device> gpu_of_rank(Rank rank) {
  cuda::set_emulated_devices(16);
  return *cuda::Device::open(cuda::emulated_driver(), rank.value());
}

/// Limits for which a group is made quickly.
inline GroupLimits little_staging() {
  return {.segment_bytes = std::size_t{1} << 20, .host_bytes = std::size_t{1} << 20};
}

/// The control plane and the transport of a rank of `group`.
inline Result<RankEnds> ends_of(InprocGroup& group, Rank rank,
                                const GroupLimits& limits = little_staging(),
                                std::shared_ptr<const cuda::Device> gpu = nullptr) {
  RankEnds ends{RESHARD_TRY(group.control(rank)), nullptr};
  if (gpu == nullptr) gpu = gpu_of_rank(rank);
  ends.transport = RESHARD_TRY(make_transport(*ends.control, model_nccl(), gpu, patient(), limits));
  return ends;
}

/// Runs a body on each of n ranks; as TransportUnderTest::run. `one_gpu`: of all ranks, which only
/// the model allows; null: each has its own.
inline Result<> run_nccl_ranks(int n, const RankBody& body,
                               const GroupLimits& limits = little_staging(),
                               std::shared_ptr<const cuda::Device> one_gpu = nullptr) {
  InprocGroup group = RESHARD_TRY(InprocGroup::create(n));
  cuda::set_emulated_devices(16);
  return run_ranks(n, [&](Rank rank) -> Result<> {
    RankEnds ends = RESHARD_TRY(ends_of(group, rank, limits, one_gpu));
    // A body may abort the group, which a rank that is still joining would notice.
    RESHARD_TRY(ends.control->barrier(patient()));
    body(ends);
    return {};
  });
}

/// Limits that cut most messages, and outgrow what is allocated at first.
inline GroupLimits small_limits() { return {.segment_bytes = 1000, .host_bytes = 1500}; }

/// The bytes of a message at one rank, in host memory or in that of its GPU.
class Memory {
 public:
  Memory(Rank rank, std::size_t bytes, bool on_gpu) : host_(bytes), on_gpu_(on_gpu) {
    if (!on_gpu) return;
    gpu_ = gpu_of_rank(rank);
    buffer_ = *cuda::Buffer::on_device(gpu_, static_cast<Index>(bytes));
  }
  std::span<std::byte> span() {
    return on_gpu_ ? std::span(buffer_.data(), host_.size()) : std::span(host_);
  }
  void write(const Bytes& bytes) {
    host_ = bytes;
    if (on_gpu_) cuda::write_to_gpu(gpu_, buffer_.data(), bytes);
  }
  Bytes read() const {
    return on_gpu_ ? cuda::read_from_gpu(gpu_, buffer_.data(), host_.size()) : host_;
  }

 private:
  Bytes host_;
  bool on_gpu_;
  std::shared_ptr<const cuda::Device> gpu_;
  cuda::Buffer buffer_;
};

/// Forgets what the models of NCCL and of the GPU count, before and after each test, which must
/// give everything back.
class WithNcclModel : public testing::Test {
 protected:
  void SetUp() override {
    nccl_model().reset();
    cuda::emulated_gpu().reset();
    open_before_ = cuda::emulated_gpu().num_open();
  }
  void TearDown() override {
    EXPECT_EQ(nccl_model().num_open(), 0);
    EXPECT_EQ(cuda::emulated_gpu().num_open(), open_before_);
    nccl_model().reset();
  }

 private:
  int open_before_ = 0;
};

}  // namespace reshard::nccl
