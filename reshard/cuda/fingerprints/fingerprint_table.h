// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/cuda/fingerprints/fingerprint_tiles.h"
#include "reshard/transform/fingerprint.h"
#include "reshard/transform/fingerprint_key.h"

namespace reshard::cuda {

/// Some elements of a tensor, in memory that a GPU reaches. Borrowed while it is added to a table;
/// the memory, while sums are computed.
struct FingerprintedBox {
  const FingerprintKey* key = nullptr;
  Box box;        ///< in the key's tensor.
  Strided where;  ///< in the local tensor that begins at `data`.
  const std::byte* data = nullptr;
  /// From the form in memory to the key's, which is fingerprinted; the default if they are one.
  Conversion conversion = {};
};

/// Collects boxes of tensors, and cuts them into tiles for the thread blocks of a GPU. Each box
/// adds to a sum: with the same result as fingerprint() of its elements, converted as
/// convert_values() does. The tables are built once and kept on the device (FingerprintRunner).
class FingerprintTable {
 public:
  /// Bytes that a thread block reads at once, about.
  static constexpr Index kTileBytes = Index{128} << 10;

  /// Adds the box to the sum `sum`. Each access is as wide, up to 16 bytes, as the alignment of
  /// addresses, runs and strides allows; of long runs that begin at odd places only the ends are
  /// narrow. Where the last dimension is not contiguous, but another is, threads read along that.
  /// Errors: `unsupported` if elements of 4 or 6 bits do not fill whole bytes, or if values to
  /// convert are not aligned to their size.
  /// @pre as for fingerprint(); sum >= 0; dtypes to convert are convertible
  Result<> add(const FingerprintedBox& what, Index sum);
  /// To be called after the last add().
  void end() { end_tile(); }

  /// One more than the largest number of a sum.
  Index num_sums() const { return num_sums_; }
  /// The bytes of all boxes, in memory.
  Index bytes() const { return bytes_; }
  std::span<const FingerprintTile> tiles() const { return tiles_; }
  std::span<const FingerprintSlice> slices() const { return slices_; }
  std::span<const FingerprintPiece> pieces() const { return pieces_; }
  std::span<const CopyLoop> loops() const { return loops_; }

 private:
  struct Rows;

  static Rows rows_of(const FingerprintedBox& what, Index sum);
  void add_columns(Rows rows);
  void add_aligned(const Rows& rows);
  void add_along(const Rows& rows, ReadBy read_by, Index src_bytes);
  void add_across(Rows rows);
  void add_block(const Rows& rows, bool four_rows);
  void add_piece(FingerprintPiece piece, const Rows& rows);
  void add_slices(Index rows, Index row_bytes);
  void end_tile();

  std::vector<FingerprintTile> tiles_;
  std::vector<FingerprintSlice> slices_;
  std::vector<FingerprintPiece> pieces_;
  std::vector<CopyLoop> loops_;
  Index num_sums_ = 0, bytes_ = 0, filled_ = 0;
};

/// B_l of the definition, as the kernel reads it: kNumWeights. Computed in the first call. Any
/// thread.
std::span<const WordWeights> word_weights();

}  // namespace reshard::cuda
