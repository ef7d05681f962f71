// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "reshard/base/dtype.h"
#include "reshard/base/result.h"
#include "reshard/layout/strided.h"
#include "reshard/transform/box_rows.h"
#include "reshard/transform/fingerprint.h"

namespace reshard {

/// The weights of one canonical tensor's fingerprint. A value; may be shared between threads.
class FingerprintKey {
 public:
  /// Errors: unsupported if the last dimension does not fill whole bytes (4- and 6-bit elements);
  /// invalid_argument for a negative dimension or a tensor too large for 64-bit arithmetic.
  static Result<FingerprintKey> make(std::string_view name, const Dims& shape, DType dtype);

  const Dims& shape() const { return matrix_.shape; }
  const ByteMatrix& matrix() const { return matrix_; }
  /// key_l of the definition.
  std::uint64_t lane_key(std::size_t lane) const { return keys_[lane]; }
  /// The number of parts per row.
  Index parts() const { return parts_; }

 private:
  ByteMatrix matrix_;
  std::array<std::uint64_t, 2> keys_{};
  Index parts_ = 1;
};

/// The fingerprint of the elements in `box` of the key's tensor, which lie at `where` in the local
/// tensor that begins at `data`. Reads each element once. Several threads may work on one tensor.
///
/// Errors: unsupported if 4- or 6-bit elements do not fill whole bytes.
/// @pre `box` lies in the tensor; `where` has one stride per dimension and stays inside the local
/// tensor
Result<Fingerprint> fingerprint(const FingerprintKey& key, const Box& box, const Strided& where,
                                const std::byte* data);

/// The part of the "+ 1" in a sum over columns, by lane: the sum over bytes [begin, end) of a part
/// of B_l[p / 4] * 2^(8 (p mod 4)). For those who compute fingerprints elsewhere.
/// @pre begin <= end <= 16384
std::array<std::uint64_t, 2> fingerprint_ones(std::size_t begin, std::size_t end);

/// The fingerprint of a whole contiguous tensor.
Result<Fingerprint> fingerprint(const FingerprintKey& key, const std::byte* data);

}  // namespace reshard
