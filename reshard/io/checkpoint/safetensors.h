// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/dtype.h"
#include "reshard/base/result.h"
#include "reshard/index/box.h"
#include "reshard/io/files/mapped_file.h"

/// The safetensors format: 8 bytes little-endian N; N bytes of JSON, an object of tensor name ->
/// {"dtype", "shape", "data_offsets": [begin, end)} and "__metadata__" of strings; then the data,
/// to which the offsets count and which the tensors cover exactly: no holes, no overlaps, nothing
/// left over.
namespace reshard {

/// Most bytes of JSON that a header may have.
inline constexpr std::int64_t kMaxSafetensorsHeader = 100'000'000;

/// A tensor as someone wants it stored.
struct TensorSpec {
  std::string name;
  DType dtype = DType::bf16;
  Dims shape;
  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

/// A tensor and where its bytes are, row-major, from the beginning of its file. Unit: bytes.
///
/// Invariant: `bytes` is what dtype and shape ask for, the range lies inside the file, and the
/// product of the shape (zeros counted as ones) times the dtype's bits fits in int64.
struct StoredTensor : TensorSpec {
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
  friend bool operator==(const StoredTensor&, const StoredTensor&) = default;
};

/// Bytes of a tensor of this dtype and shape, row-major and without gaps. Errors: a negative entry,
/// a product (zeros counted as ones) that does not fit in int64 bits, or 4- and 6-bit elements that
/// fill no whole number of bytes.
Result<std::int64_t> stored_bytes(DType dtype, const Dims& shape);

using StringMap = std::map<std::string, std::string>;

/// What the header of a safetensors file says, all of it checked against the file.
struct SafetensorsHeader {
  std::vector<StoredTensor>
      tensors;  ///< In the order of the file: their ranges follow one another.
  StringMap metadata;
  std::int64_t data_offset = 0;  ///< Where the tensors' bytes begin.
};

/// The header of the file with these bytes; of the tensor data only the amount is looked at.
/// Errors are Code::corrupt, or Code::unsupported for a dtype or number of dimensions that reshard
/// does not know; they name the tensor but not the file.
Result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> file);

/// A safetensors file open for reading. Const members may be called from several threads.
class SafetensorsFile {
 public:
  /// Errors of MappedFile::open and parse_safetensors, with the path in front.
  static Result<SafetensorsFile> open(const std::string& path);

  const std::string& path() const { return file_.path(); }
  /// In the order of the file.
  const std::vector<StoredTensor>& tensors() const { return header_.tensors; }
  const StringMap& metadata() const { return header_.metadata; }
  /// The tensor of that name, or null; valid as long as this object stays where it is.
  const StoredTensor* find(std::string_view name) const;
  /// The tensor's bytes; valid as long as this object or the one it is moved to lives.
  /// @pre `tensor` is one of tensors()
  std::span<const std::byte> data(const StoredTensor& tensor) const;
  /// The file itself, to steer what stays in memory.
  const MappedFile& mapping() const { return file_; }

 private:
  SafetensorsFile(MappedFile file, SafetensorsHeader header);
  MappedFile file_;
  SafetensorsHeader header_;
  std::vector<std::size_t> by_name_;
};

}  // namespace reshard
