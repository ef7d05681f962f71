// SPDX-License-Identifier: Apache-2.0
#include "reshard/cuda/fingerprints/fingerprint_runner.h"

#include <algorithm>

#include "reshard/cuda/tiles/launch_kernel.h"
#include "reshard/cuda/tiles/packed_tables.h"

namespace reshard::cuda {

Result<FingerprintRunner> FingerprintRunner::make(const std::shared_ptr<const Device>& device,
                                                  const FingerprintTable& table, int most_blocks) {
  static_assert(sizeof(Fingerprint) == sizeof(LaneSums));
  FingerprintRunner out;
  if (table.num_sums() == 0) return out;
  const Index bytes = table.num_sums() * static_cast<Index>(sizeof(Fingerprint));
  out.sums_ = RESHARD_TRY(Buffer::on_device(device, bytes));
  out.host_sums_ = RESHARD_TRY(Buffer::pinned(device, bytes));
  if (!table.tiles().empty()) {
    out.kernel_ = RESHARD_TRY(device->kernel(kFingerprintKernel));
    PackedTables packed;
    const Index pieces = packed.add(table.pieces()), loops = packed.add(table.loops()),
                slices = packed.add(table.slices()), tiles = packed.add(table.tiles()),
                weights = packed.add(word_weights());
    out.tables_ = RESHARD_TRY(packed.copy_to(device));
    out.launch_ = {table_at<FingerprintTile>(out.tables_, tiles),
                   table_at<FingerprintSlice>(out.tables_, slices),
                   table_at<FingerprintPiece>(out.tables_, pieces),
                   table_at<CopyLoop>(out.tables_, loops),
                   table_at<WordWeights>(out.tables_, weights),
                   reinterpret_cast<std::uint64_t*>(out.sums_.data()),
                   static_cast<std::uint32_t>(table.tiles().size())};
    out.blocks_ = std::min(blocks_at_a_time(*device, most_blocks), out.launch_.num_tiles);
  }
  return out;
}

Result<> FingerprintRunner::launch(const Stream& stream) const {
  RESHARD_TRY(stream.fill(sums_.data(), std::byte{0}, sums_.size()));
  if (blocks_ > 0)
    RESHARD_TRY(launch_kernel(stream, kernel_, blocks_, launch_, "cuLaunchKernel of fingerprints"));
  return stream.copy(host_sums_.data(), sums_.data(), sums_.size());
}

std::span<const Fingerprint> FingerprintRunner::sums() const {
  return {reinterpret_cast<const Fingerprint*>(host_sums_.data()),
          static_cast<std::size_t>(host_sums_.size()) / sizeof(Fingerprint)};
}

}  // namespace reshard::cuda
