// SPDX-License-Identifier: Apache-2.0
#include "reshard/refit/conversion/target_digests.h"

#include <algorithm>
#include <string_view>

#include "reshard/base/hash.h"
#include "reshard/transform/fingerprint_key.h"

namespace reshard::conversion {
namespace {

Index rows_of(const PartRows& part) {
  return part.bytes == 0 ? 0 : (part.bytes - part.row) / std::max<Index>(part.stride, 1) + 1;
}

}  // namespace

Result<std::vector<std::uint64_t>> TargetDigests::read() {
  if (memory_->device() != nullptr) return read_on_gpu();
  std::vector<std::uint64_t> out;
  for (const PartRows& part : parts_) {
    const auto* const at = reinterpret_cast<const char*>(memory_->at(me_, part.slot));
    Digest digest;
    for (Index row = 0; at != nullptr && row < rows_of(part); ++row)
      digest.add(std::string_view(at + part.offset + row * part.stride,
                                  static_cast<std::size_t>(part.row)));
    out.push_back(digest.value());
  }
  return out;
}

Result<> TargetDigests::prepare_gpu() {
  cuda::FingerprintTable table;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const PartRows& part = parts_[i];
    const std::byte* const at = memory_->at(me_, part.slot);
    const Dims shape{at == nullptr ? 0 : rows_of(part), part.row};
    const auto key = RESHARD_TRY(FingerprintKey::make("bytes", shape, DType::u8));
    RESHARD_TRY(table.add({&key, Box::whole(shape), {part.offset, {part.stride, 1}}, at},
                          static_cast<Index>(i)));
  }
  table.end();
  runner_ = RESHARD_TRY(cuda::FingerprintRunner::make(memory_->device(), table));
  return {};
}

Result<std::vector<std::uint64_t>> TargetDigests::read_on_gpu() {
  if (!runner_) RESHARD_TRY(prepare_gpu());
  std::vector<std::uint64_t> out;
  if (parts_.empty()) return out;
  const auto stream = cuda::Stream::borrow(memory_->device(), memory_->stream());
  RESHARD_TRY(runner_->launch(stream));
  RESHARD_TRY(stream.synchronize());
  for (const Fingerprint& sum : runner_->sums()) out.push_back(mix64(sum.lane[0]) + sum.lane[1]);
  return out;
}

}  // namespace reshard::conversion
