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
#include "reshard/io/checkpoint/tensor_file_writer.h"

namespace reshard {

/// The header of a safetensors file and the places of its tensors.
struct SafetensorsPlan {
  std::string head;                   ///< length and JSON, padded to a multiple of 8 bytes.
  std::vector<StoredTensor> tensors;  ///< in the order of the request.
  std::int64_t file_bytes = 0;        ///< `head` and all tensors.
};

/// Plans a file's header and the place of each tensor; touches no file. Tensors with wider elements
/// come first, others keep the order of the request, so that every tensor is aligned to its
/// element. `transformers` expects the metadata {"format": "pt"}. Errors: a duplicate name, the
/// reserved name "__metadata__", names or metadata that are not UTF-8, shapes that stored_bytes()
/// refuses, a file size that overflows int64, a header above the format's limit.
Result<SafetensorsPlan> plan_safetensors(std::span<const TensorSpec> tensors,
                                         const StringMap& metadata);

/// Writes one safetensors file; its tensors may arrive in any order and in pieces of any size.
///
/// create() allocates the whole file, and positioned writes fill it. So no pages of the output stay
/// resident, and a full disk is an error rather than the SIGBUS that a mapping would raise. Pieces
/// of 1 to 8 MiB are best. A writer that is destroyed before finish() removes its file. write_at()
/// and write_pieces_at() may be called from several threads at a time; the rest may not.
class SafetensorsWriter final : public TensorFileWriter {
 public:
  /// Creates a new file and writes its header. Errors: those of plan_safetensors; the file exists;
  /// its folder does not; permission; too little free space (checked before writing). Leaves no
  /// file on error.
  static Result<SafetensorsWriter> create(const std::string& path, std::vector<TensorSpec> tensors,
                                          const StringMap& metadata = {}, Watcher watcher = {});

  /// Writes no file: the watcher sees the bytes that one would have.
  static Result<SafetensorsWriter> rehearse(std::vector<TensorSpec> tensors,
                                            const StringMap& metadata, Watcher watcher);

  SafetensorsWriter(SafetensorsWriter&&) noexcept;
  SafetensorsWriter& operator=(SafetensorsWriter&&) noexcept;
  ~SafetensorsWriter() override;

  /// In the order given to create(), with their places in the file.
  const std::vector<StoredTensor>& tensors() const;
  std::int64_t file_bytes() const;

  /// Writes `data` at byte `offset` of tensors()[tensor].
  /// @pre the range lies inside the tensor, and no byte of it was written before
  Result<> write_at(std::size_t tensor, std::int64_t offset,
                    std::span<const std::byte> data) override;
  /// Writes the pieces one after another, starting at byte `offset` of the tensor, with few system
  /// calls and without a copy.
  /// @pre as write_at for all pieces together
  Result<> write_pieces_at(std::size_t tensor, std::int64_t offset,
                           std::span<const std::span<const std::byte>> pieces);

  /// Closes the file and checks that all bytes of the tensors were written. With `sync`, returns
  /// only when the data is on the disk. Call it once, last. @post on success the file is complete
  /// and stays
  Result<> finish(bool sync) override;
  Result<> finish() { return finish(false); }

 private:
  struct State;
  explicit SafetensorsWriter(std::unique_ptr<State> state);
  /// An empty `path`: no file.
  static Result<SafetensorsWriter> make(const std::string& path, std::vector<TensorSpec> tensors,
                                        const StringMap& metadata, Watcher watcher);
  std::unique_ptr<State> state_;
};

/// A tensor and its bytes, which are borrowed.
struct TensorBytes {
  TensorSpec spec;
  std::span<const std::byte> data;
};

/// Writes a whole file at once. Errors: those of SafetensorsWriter, and data of the wrong size.
Result<> write_safetensors(const std::string& path, std::span<const TensorBytes> tensors,
                           const StringMap& metadata = {});

}  // namespace reshard
