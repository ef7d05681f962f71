// SPDX-License-Identifier: Apache-2.0
// Protects: NCCL keeps the guarantees of every transport, but for those that it names.
#include <gtest/gtest.h>

#include <bit>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "reshard/gpu_transport/gpu_messages_testutil.h"
#include "reshard/gpu_transport/nccl/guarantees_testutil.h"
#include "reshard/gpu_transport/nccl/nccl_group_testutil.h"
#include "reshard/transport/testing/conformance_testutil.h"

namespace reshard::nccl {
namespace {

/// Memory of the GPU that all ranks share. It is kept for later messages and never freed: freeing
/// waits for the kernels of all ranks, which may wait for the rank that frees.
class SharedGpuMemory final : public GpuMessageMemory {
 public:
  std::shared_ptr<std::byte> allocate(std::size_t bytes) override {
    const std::size_t size = std::bit_ceil(bytes);
    const std::scoped_lock lock(mutex());
    auto& kept = kept_of(size);
    if (kept.empty()) kept.push_back(GpuMessageMemory::allocate(size));
    std::shared_ptr<std::byte> block = std::move(kept.back());
    kept.pop_back();
    std::byte* const at = block.get();
    return {at, [block = std::move(block), size](std::byte*) {
              const std::scoped_lock unlock(mutex());
              kept_of(size).push_back(block);
            }};
  }

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  static std::vector<std::shared_ptr<std::byte>>& kept_of(std::size_t size) {
    // Not destroyed: the driver may end first.
    static auto& all = *new std::map<std::size_t, std::vector<std::shared_ptr<std::byte>>>;
    return all[size];
  }
};

MessageMemories on_gpu() {
  const auto gpu = std::make_shared<SharedGpuMemory>();
  return {gpu, gpu};
}
MessageMemories from_gpu_to_host() {
  return {std::make_shared<SharedGpuMemory>(), host_memories().recvs};
}

Result<> run_on(int n, const RankBody& body, std::shared_ptr<const cuda::Device> one_gpu) {
  if (skips_what_nccl_does_not_give()) return {};
  return run_nccl_ranks(n, body, little_staging(), std::move(one_gpu));
}
Result<> run(int n, const RankBody& body) { return run_on(n, body, nullptr); }
Result<> run_on_one_gpu(int n, const RankBody& body) {
  return run_on(n, body, cuda::gpu_under_test());
}

const TransportUnderTest kNccl{"nccl", run};
RESHARD_TEST_TRANSPORT(Nccl, kNccl);

const TransportUnderTest kGpuMemory{"nccl", run_on_one_gpu, on_gpu};
RESHARD_TEST_MESSAGES(NcclGpuMemory, kGpuMemory);
const TransportUnderTest kGpuToHost{"nccl", run_on_one_gpu, from_gpu_to_host};
RESHARD_TEST_MESSAGES(NcclGpuToHost, kGpuToHost);

}  // namespace
}  // namespace reshard::nccl
