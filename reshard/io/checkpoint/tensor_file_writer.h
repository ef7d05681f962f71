// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "reshard/base/result.h"

namespace reshard {

/// Writes the tensors of one file of a checkpoint, in any order and in pieces of any size.
/// write_at() may be called from several threads at a time; the rest may not.
class TensorFileWriter {
 public:
  /// Called with each piece, including what describes the tensors, before it is written, in the
  /// thread that writes it. `offset` counts from the beginning of the file. Bytes.
  using Watcher = std::function<void(std::int64_t offset, std::span<const std::byte> bytes)>;

  virtual ~TensorFileWriter() = default;
  /// Writes `data` at byte `offset` of the tensor of this number in the order of the request.
  /// @pre the range lies inside the tensor, and no byte of it was written before
  virtual Result<> write_at(std::size_t tensor, std::int64_t offset,
                            std::span<const std::byte> data) = 0;
  /// Closes the file and checks that all bytes of the tensors were written. With `sync`, returns
  /// only when the data is on the disk. Call it once, last. @post on success the file is complete
  /// and stays
  virtual Result<> finish(bool sync) = 0;

 protected:
  TensorFileWriter() = default;
  TensorFileWriter(const TensorFileWriter&) = default;
  TensorFileWriter& operator=(const TensorFileWriter&) = default;
  TensorFileWriter(TensorFileWriter&&) = default;
  TensorFileWriter& operator=(TensorFileWriter&&) = default;
};

}  // namespace reshard
