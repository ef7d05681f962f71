// SPDX-License-Identifier: Apache-2.0
#include "reshard/refit/conversion/target_digests.h"

#include "reshard/base/hash.h"

namespace reshard::conversion {

Result<std::vector<std::uint64_t>> TargetDigests::read() {
  if (memory_->device() != nullptr) return read_on_gpu();
  std::vector<std::uint64_t> out;
  for (const SlotId slot : slots_) {
    const auto* const at = reinterpret_cast<const char*>(memory_->at(me_, slot));
    const auto bytes = static_cast<std::size_t>(memory_->bytes(me_, slot));
    out.push_back(at == nullptr ? 0 : hash64({at, bytes}));
  }
  return out;
}

Result<> TargetDigests::prepare_gpu() {
  cuda::FingerprintTable table;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const std::byte* const at = memory_->at(me_, slots_[i]);
    const Dims shape{at == nullptr ? 0 : memory_->bytes(me_, slots_[i])};
    const auto key = RESHARD_TRY(FingerprintKey::make("bytes", shape, DType::u8));
    RESHARD_TRY(table.add({&key, Box::whole(shape), {0, {1}}, at}, static_cast<Index>(i)));
  }
  table.end();
  runner_ = RESHARD_TRY(cuda::FingerprintRunner::make(memory_->device(), table));
  return {};
}

Result<std::vector<std::uint64_t>> TargetDigests::read_on_gpu() {
  if (!runner_) RESHARD_TRY(prepare_gpu());
  std::vector<std::uint64_t> out;
  if (slots_.empty()) return out;
  const auto stream = cuda::Stream::borrow(memory_->device(), memory_->stream());
  RESHARD_TRY(runner_->launch(stream));
  RESHARD_TRY(stream.synchronize());
  for (const Fingerprint& sum : runner_->sums()) out.push_back(mix64(sum.lane[0]) + sum.lane[1]);
  return out;
}

}  // namespace reshard::conversion
