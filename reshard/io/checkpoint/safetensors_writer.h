// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/io/checkpoint/safetensors.h"

namespace reshard {

/// The beginning of a safetensors file and where its tensors go.
struct SafetensorsPlan {
  std::string head;                   ///< The 8 bytes of length and the JSON, padded to 8 bytes.
  std::vector<StoredTensor> tensors;  ///< In the order of the request.
  std::int64_t file_bytes = 0;        ///< `head` and all tensors.
};

/// Where each tensor of a file goes, without touching a file. In the file wider elements come first
/// and equal ones keep the order of the request, so that every tensor is aligned to its element.
/// Loaders of `transformers` want metadata {"format": "pt"}.
/// Errors: the same name twice, the reserved name "__metadata__", names or metadata that are not
/// UTF-8, shapes that stored_bytes refuses, a file that 64 bits cannot count, a header above the
/// format's limit.
Result<SafetensorsPlan> plan_safetensors(std::span<const TensorSpec> tensors,
                                         const StringMap& metadata);

/// Writes one safetensors file whose tensors arrive in any order and in pieces of any size.
///
/// The file is allocated in full by create, then filled by positioned writes: that keeps no pages
/// of the output resident, and a full disk is an error and no SIGBUS, as it would be in a mapping.
/// Pieces of 1 to 8 MiB are best. A writer that is destroyed before finish() removes its file.
/// write_at and write_pieces_at may be called from several threads; the rest may not.
class SafetensorsWriter {
 public:
  /// Told of each piece, the header too, where in the file it goes, before it is written; from the
  /// thread that writes it.
  using Watcher = std::function<void(std::int64_t offset, std::span<const std::byte> bytes)>;

  /// Creates the file, which must not exist, and writes its header.
  /// Errors: those of plan_safetensors; the file exists; its folder does not; permission; too
  /// little free space (checked before a byte is written). On error no file is left.
  static Result<SafetensorsWriter> create(const std::string& path, std::vector<TensorSpec> tensors,
                                          const StringMap& metadata = {}, Watcher watcher = {});

  SafetensorsWriter(SafetensorsWriter&&) noexcept;
  SafetensorsWriter& operator=(SafetensorsWriter&&) noexcept;
  ~SafetensorsWriter();

  /// In the order that create was given, with their places in the file.
  const std::vector<StoredTensor>& tensors() const;
  std::int64_t file_bytes() const;

  /// Writes `data` at byte `offset` of tensors()[tensor].
  /// @pre the range lies inside the tensor, and no byte of it was written before
  Result<> write_at(std::size_t tensor, std::int64_t offset, std::span<const std::byte> data);
  /// Writes the pieces one after another from byte `offset` on, with few system calls and no copy.
  /// @pre as write_at for all pieces together
  Result<> write_pieces_at(std::size_t tensor, std::int64_t offset,
                           std::span<const std::span<const std::byte>> pieces);

  /// Closes the file and checks that as many bytes were written as the tensors have. With `sync`
  /// returns only when the data is on the disk. @post ok => the file is complete and stays. Call it
  /// once, last.
  Result<> finish(bool sync = false);

 private:
  struct State;
  explicit SafetensorsWriter(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// A tensor with its bytes, borrowed.
struct TensorBytes {
  TensorSpec spec;
  std::span<const std::byte> data;
};

/// Writes a whole file at once; the same errors as SafetensorsWriter, and a data size that does not
/// fit.
Result<> write_safetensors(const std::string& path, std::span<const TensorBytes> tensors,
                           const StringMap& metadata = {});

}  // namespace reshard
