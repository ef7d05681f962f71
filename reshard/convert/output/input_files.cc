// SPDX-License-Identifier: Apache-2.0
#include "reshard/convert/output/input_files.h"

#include <algorithm>
#include <filesystem>

#include "reshard/io/checkpoint/index.h"
#include "reshard/io/checkpoint/model_storage.h"
#include "reshard/io/files/writers.h"

namespace reshard::output {
namespace {

namespace fs = std::filesystem;

void add_file(Digest& digest, const std::string& path, const FileStamp& stamp) {
  std::error_code ignored;
  digest.add(fs::absolute(path, ignored).string());
  digest.add(stamp.device).add(stamp.inode).add(stamp.bytes);
  digest.add(stamp.modified_ns).add(stamp.changed_ns);
}

}  // namespace

InputFiles::InputFiles(const std::string& path) {
  std::error_code ignored;
  const fs::path folder =
      fs::is_directory(path, ignored) ? fs::path(path) : fs::path(path).parent_path();
  for (const std::string_view name : {kConfigFile, kHfIndexFile, kRankIndexFile, kDcpFile,
                                      std::string_view("hf_quant_config.json")})
    note((folder / name).string());
}

void InputFiles::note(const std::string& path) {
  // If a missing file is needed, its reader reports it.
  if (const auto stamp = FileStamp::of(path)) {
    outlast(*stamp);
    files_.push_back({path, *stamp});
  }
}

void InputFiles::add(const LayoutSpec& layout, const std::string& folder) {
  if (!layout.file.empty()) note((fs::path(folder) / layout.file).string());
  if (const auto map = layout.keys.find("expert_map"); map != layout.keys.end())
    note((fs::path(folder) / map->second).string());
}

void InputFiles::add_adapter(const std::string& folder) {
  note((fs::path(folder) / kAdapterConfigFile).string());
}

void InputFiles::add(const Model& model) {
  for (std::size_t i = 0; i < model.weights->num_files(); ++i)
    mapped_.push_back(&model.weights->mapping(i));
  for (const SafetensorsFile& file : model.storage->adapters) mapped_.push_back(&file.mapping());
}

void InputFiles::add_to(Digest& digest) const {
  for (const File& file : files_) add_file(digest, file.path, file.stamp);
  for (const MappedFile* file : mapped_) add_file(digest, file->path(), file->stamp());
}

bool InputFiles::are_open_for_writing() const {
  return std::ranges::any_of(
      mapped_, [](const MappedFile* file) { return is_open_for_writing(file->path()); });
}

Result<> InputFiles::unchanged() const {
  for (const File& file : files_) RESHARD_TRY(check_unchanged(file.path, file.stamp));
  for (const MappedFile* file : mapped_) RESHARD_TRY(file->unchanged());
  return {};
}

}  // namespace reshard::output
