// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/io/checkpoint/stored_tensor.h"
#include "reshard/io/files/mapped_file.h"

/// The safetensors format: a length N (8 bytes, little-endian); N bytes of JSON, an object of
/// tensor name -> {"dtype", "shape", "data_offsets": [begin, end)} and "__metadata__", an object of
/// strings; then the data. Offsets count from the beginning of the data. The tensors cover the data
/// exactly: no holes, no overlaps, no trailing bytes.
namespace reshard {

/// The largest header. Bytes of JSON.
inline constexpr std::int64_t kMaxSafetensorsHeader = 100'000'000;

using StringMap = std::map<std::string, std::string>;

/// The header of a safetensors file, checked against the file.
struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;  ///< in the order of their bytes in the file.
  StringMap metadata;
  std::int64_t data_offset = 0;  ///< of the first tensor's first byte.
};

/// Parses the header of a safetensors file. Of the tensor data only the size is used. Errors are
/// Code::corrupt, or Code::unsupported for an unknown dtype or too many dimensions; they name the
/// tensor but not the file.
Result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> file);

/// A safetensors file open for reading. Const members may be called from several threads.
class SafetensorsFile {
 public:
  /// Errors: those of MappedFile::open and parse_safetensors, prefixed with the path.
  static Result<SafetensorsFile> open(const std::string& path);

  const std::string& path() const { return file_.path(); }
  /// In the order of the file.
  const std::vector<StoredTensor>& tensors() const { return header_.tensors; }
  const StringMap& metadata() const { return header_.metadata; }
  /// Finds a tensor by name, or null. Valid until this object is moved or destroyed.
  const StoredTensor* find(std::string_view name) const;
  /// The tensor's bytes. Valid while this object, or the one it is moved to, lives.
  /// @pre `tensor` is one of tensors()
  std::span<const std::byte> data(const StoredTensor& tensor) const;
  /// The mapped file, for prefetching and dropping pages.
  const MappedFile& mapping() const { return file_; }

 private:
  SafetensorsFile(MappedFile file, SafetensorsHeader header);
  MappedFile file_;
  SafetensorsHeader header_;
  std::vector<std::size_t> by_name_;
};

}  // namespace reshard
