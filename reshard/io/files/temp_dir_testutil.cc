// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/files/temp_dir_testutil.h"

#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "reshard/base/check.h"

namespace reshard::testing {

namespace fs = std::filesystem;

TempDir::TempDir() {
  std::string name = (fs::temp_directory_path() / "reshard-test-XXXXXX").string();
  RESHARD_CHECK(::mkdtemp(name.data()) != nullptr);
  path_ = name;
}

TempDir::~TempDir() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::string TempDir::write(std::string_view name, std::string_view content) const {
  const auto path = *this / name;
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

std::vector<std::string> TempDir::names() const {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(path_)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string safetensors_file(std::string_view header, std::size_t data_bytes) {
  return safetensors_file(header.size(), header, data_bytes);
}

std::string safetensors_file(std::uint64_t length, std::string_view header,
                             std::size_t data_bytes) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(length >> (8 * i) & 0xff);
  file += header;
  return file + std::string(data_bytes, '\0');
}

}  // namespace reshard::testing
