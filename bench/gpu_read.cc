// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_read.h"

#include <cstring>

#include "reshard/cuda/driver.h"
#include "reshard/cuda/kernel_image.h"

namespace reshard::bench {
namespace {

/// Four loads of 16 bytes in flight a thread. The driver compiles it for its GPU.
constexpr char kReadKernel[] = R"(
.version 7.0
.target sm_80
.address_size 64
.visible .entry reshard_read(.param .u64 from, .param .u64 vectors, .param .u64 result) {
  .reg .pred p;
  .reg .b32 sum, tid, threads, block, blocks, v<16>;
  .reg .b64 at, end, whole, step, four, first, size, to;
  mov.u32 tid, %tid.x;
  mov.u32 threads, %ntid.x;
  mov.u32 block, %ctaid.x;
  mov.u32 blocks, %nctaid.x;
  ld.param.u64 first, [from];
  ld.param.u64 size, [vectors];
  ld.param.u64 to, [result];
  mad.lo.u32 tid, block, threads, tid;
  mul.lo.u32 threads, threads, blocks;
  mad.wide.u32 at, tid, 16, first;
  mul.wide.u32 step, threads, 16;
  mul.lo.u64 four, step, 3;
  mad.lo.u64 end, size, 16, first;
  sub.u64 whole, end, four;
  mov.u32 sum, 0;
many:
  setp.ge.u64 p, at, whole;
  @p bra single;
  ld.global.cs.v4.u32 {v0, v1, v2, v3}, [at];
  add.u64 at, at, step;
  ld.global.cs.v4.u32 {v4, v5, v6, v7}, [at];
  add.u64 at, at, step;
  ld.global.cs.v4.u32 {v8, v9, v10, v11}, [at];
  add.u64 at, at, step;
  ld.global.cs.v4.u32 {v12, v13, v14, v15}, [at];
  add.u64 at, at, step;
  add.u32 sum, sum, v0;  add.u32 sum, sum, v1;  add.u32 sum, sum, v2;  add.u32 sum, sum, v3;
  add.u32 sum, sum, v4;  add.u32 sum, sum, v5;  add.u32 sum, sum, v6;  add.u32 sum, sum, v7;
  add.u32 sum, sum, v8;  add.u32 sum, sum, v9;  add.u32 sum, sum, v10; add.u32 sum, sum, v11;
  add.u32 sum, sum, v12; add.u32 sum, sum, v13; add.u32 sum, sum, v14; add.u32 sum, sum, v15;
  bra many;
single:
  setp.ge.u64 p, at, end;
  @p bra done;
  ld.global.cs.v4.u32 {v0, v1, v2, v3}, [at];
  add.u64 at, at, step;
  add.u32 sum, sum, v0;  add.u32 sum, sum, v1;  add.u32 sum, sum, v2;  add.u32 sum, sum, v3;
  bra single;
done:
  red.global.add.u32 [to], sum;
  ret;
}
)";

}  // namespace

Result<PlainRead> PlainRead::make(const cuda::Driver& driver, int gpu) {
  PlainRead out;
  // cuModuleLoadData() takes PTX as text that ends with a zero.
  out.device_ = RESHARD_TRY(cuda::Device::open(
      driver, gpu, {.main = std::as_bytes(std::span(kReadKernel)), .portable = {}}));
  out.kernel_ = RESHARD_TRY(out.device_->kernel("reshard_read"));
  out.sum_ = RESHARD_TRY(cuda::Buffer::on_device(out.device_, 4));
  return out;
}

Result<> PlainRead::launch(const cuda::Stream& stream, const std::byte* from, Index bytes) const {
  constexpr unsigned kThreads = 256, kBlocksEach = 8;
  RESHARD_TRY(stream.fill(sum_.data(), std::byte{0}, sum_.size()));
  std::uint64_t vectors = static_cast<std::uint64_t>(bytes) / 16;
  std::byte* to = sum_.data();
  void* arguments[] = {&from, &vectors, &to};
  return device_->call("cuLaunchKernel of a plain read", [&] {
    const auto blocks = static_cast<unsigned>(device_->multiprocessors()) * kBlocksEach;
    return device_->driver().cuLaunchKernel(kernel_, blocks, 1, 1, kThreads, 1, 1, 0,
                                            stream.handle(), arguments, nullptr);
  });
}

Result<> PlainRead::check(const cuda::Stream& stream, const std::byte* host, Index bytes) const {
  const HostBuffer found = RESHARD_TRY(stream.read(sum_.data(), 4));
  std::uint32_t expected = 0, word = 0, sum = 0;
  for (Index i = 0; i + 4 <= bytes; i += 4) {
    std::memcpy(&word, host + i, sizeof word);
    expected += word;
  }
  std::memcpy(&sum, found.data(), sizeof sum);
  if (sum == expected) return {};
  return fail(Code::corrupt, "the plain read did not read all words");
}

}  // namespace reshard::bench
