// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace reshard::testing {

/// A new empty folder, removed with its contents at the end of its scope.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  /// The path of a file in the folder.
  std::string operator/(std::string_view name) const { return path_ + "/" + std::string(name); }
  /// Writes a file, replacing an existing one, and returns its path.
  std::string write(std::string_view name, std::string_view content) const;
  /// The names in the folder, including hidden ones, sorted.
  std::vector<std::string> names() const;

 private:
  std::string path_;
};

/// The content of a file; "" if it does not exist.
std::string read_file(const std::string& path);

/// The bytes of a safetensors file: the header's length, the header, and `data_bytes` zeros.
std::string safetensors_file(std::string_view header, std::size_t data_bytes);
/// The same with any length field.
std::string safetensors_file(std::uint64_t length, std::string_view header, std::size_t data_bytes);

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

}  // namespace reshard::testing
