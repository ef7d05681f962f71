// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace reshard::testing {

/// A new empty folder that is removed with everything in it.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  /// The path of that name in the folder.
  std::string operator/(std::string_view name) const { return path_ + "/" + std::string(name); }
  /// Writes a file, replacing one of that name, and returns its path.
  std::string write(std::string_view name, std::string_view content) const;
  /// The names in the folder, hidden ones too, sorted.
  std::vector<std::string> names() const;

 private:
  std::string path_;
};

/// The whole content of a file, "" when there is none.
std::string read_file(const std::string& path);

/// A safetensors file of this header text, its right length in front, and `data_bytes` zeros behind
/// it.
std::string safetensors_file(std::string_view header, std::size_t data_bytes);
/// The same with any length in front.
std::string safetensors_file(std::uint64_t length, std::string_view header, std::size_t data_bytes);

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

}  // namespace reshard::testing
