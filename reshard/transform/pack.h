// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "reshard/layout/strided.h"
#include "reshard/transform/copy.h"

namespace reshard {

/// Where packing or unpacking of one copy stands. The packed form of a copy is its runs one after
/// the other, loops in order; a message may end at any byte of it, and the next one begins there.
/// A small value: copy it to try something and go back.
class PackCursor {
 public:
  explicit PackCursor(const StridedCopy& copy) : copy_(copy), total_(copy.bytes()) {}
  /// Bytes of the packed form before and after the cursor.
  Index done() const { return done_; }
  Index left() const { return total_ - done_; }
  const StridedCopy& copy() const { return copy_; }
  /// Moves the cursor to this byte of the packed form. @pre 0 <= byte <= done() + left()
  void seek(Index byte) { done_ = byte; }

 private:
  StridedCopy copy_;
  Index done_ = 0, total_ = 0;
};

/// Gathers the next bytes of the packed form from the copy's source buffer `src` into `out`, and
/// moves the cursor past them. The copy's destination offsets play no part.
/// @return bytes written: the smaller of out.size() and cursor.left()
Index pack(PackCursor& cursor, const std::byte* src, std::span<std::byte> out, CopyHint hint);

/// Scatters `in`, the next bytes of the packed form, to the copy's destination buffer `dst`, and
/// moves the cursor past them. The copy's source offsets play no part.
/// @return bytes read: the smaller of in.size() and cursor.left()
Index unpack(PackCursor& cursor, std::span<const std::byte> in, std::byte* dst, CopyHint hint);

}  // namespace reshard
