// SPDX-License-Identifier: Apache-2.0
#include "reshard/convert/delta/parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "reshard/convert/output/companion_files.h"
#include "reshard/io/delta/delta_index.h"
#include "reshard/io/files/file_stamp.h"
#include "reshard/io/files/json.h"

namespace reshard::delta {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kDcpMetadata = ".metadata";
constexpr int kMaxDepth = 8;

/// Bytes of the unsigned integers by which elements are compared.
int width_of(DType dtype) {
  if (dtype == DType::c64) return 4;
  return std::max(1, bits(dtype) / 8);
}

tl::unexpected<Error> refuse(const fs::path& path, std::string_view why) {
  return fail(Code::invalid_argument, fmt::format("{}: {}", path.string(), why));
}

/// The file's name in the folder -> its path.
using Paths = std::map<std::string, std::string>;

/// Adds the files in `below`, a folder in the checkpoint's, or "" for the latter.
Result<> list(const std::string& folder, const fs::path& below, int depth, Paths& found) {
  if (depth > kMaxDepth) return refuse(fs::path(folder) / below, "folders nested too deeply");
  std::error_code error;
  for (fs::directory_iterator it(fs::path(folder) / below, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.starts_with('.') && name != kDcpMetadata) continue;
    const fs::path inside = below / name;
    if (auto plain = check_delta_file_name(inside.string()); !plain)
      return tl::unexpected(std::move(plain).error().in(folder));
    std::error_code unreadable;
    if (it->is_symlink(unreadable) && !output::is_of_checkpoint(folder, inside.string()))
      return refuse(it->path(), "links to a file outside the checkpoint; copy it there");
    if (it->is_directory(unreadable) && !it->is_symlink(unreadable))
      RESHARD_TRY(list(folder, inside, depth + 1, found));
    else if (it->is_regular_file(unreadable))
      found.emplace(inside.string(), it->path().string());
    else
      return refuse(it->path(), "is neither a file nor a folder");
  }
  if (!error) return {};
  return fail(Code::io, fmt::format("{}: cannot list the folder: {}",
                                    (fs::path(folder) / below).string(), error.message()));
}

}  // namespace

PartFile::PartFile(std::string name, std::optional<SafetensorsFile> tensors,
                   std::optional<MappedFile> content)
    : name_(std::move(name)), tensors_(std::move(tensors)), content_(std::move(content)) {
  const MappedFile* file = mapping();
  const auto& all = tensors_ ? tensors_->tensors() : std::vector<StoredTensor>();
  const Index bytes = file != nullptr ? file->size() : 0;
  Index head = bytes;
  for (const StoredTensor& tensor : all) head = std::min<Index>(head, tensor.offset);
  parts_.push_back({"", 1, 0, head});
  for (const StoredTensor& tensor : all)
    parts_.push_back({tensor.name, width_of(tensor.dtype), tensor.offset, tensor.bytes});
}

Result<PartFile> PartFile::open(std::string name, const std::string& path) {
  if (RESHARD_TRY(FileStamp::of(path)).bytes == 0) return PartFile(std::move(name), {}, {});
  if (!path.ends_with(".safetensors"))
    return PartFile(std::move(name), {}, RESHARD_TRY(MappedFile::open(path)));
  auto tensors = RESHARD_TRY(SafetensorsFile::open(path));
  for (const StoredTensor& tensor : tensors.tensors())
    if (tensor.name.empty())
      return fail(Code::unsupported, fmt::format("{}: a tensor has no name", path));
  return PartFile(std::move(name), std::move(tensors), {});
}

const MappedFile* PartFile::mapping() const {
  if (tensors_) return &tensors_->mapping();
  return content_ ? &*content_ : nullptr;
}

std::span<const std::byte> PartFile::data(const Part& part, Index begin, Index bytes) const {
  const Index most = std::min(bytes, part.bytes - begin);
  if (most == 0) return {};
  return mapping()->bytes().subspan(static_cast<std::size_t>(part.offset + begin),
                                    static_cast<std::size_t>(most));
}

void PartFile::drop(const Part& part, Index begin, Index bytes) const {
  if (const MappedFile* file = mapping(); file != nullptr)
    file->drop(part.offset + begin, std::min(bytes, part.bytes - begin));
}

Result<> PartFile::unchanged() const {
  const MappedFile* file = mapping();
  return file != nullptr ? file->unchanged() : Result<>();
}

Result<Parts> Parts::open(const std::string& path) {
  Parts out;
  out.path_ = path;
  std::error_code error;
  Paths paths;
  if (fs::is_directory(path, error)) {
    RESHARD_TRY(list(path, "", 0, paths));
    if (paths.empty()) return refuse(path, "the folder has no files");
  } else {
    if (fs::exists(path, error) && !fs::is_regular_file(path, error))
      return refuse(path, "is neither a file nor a folder");
    out.is_one_file_ = true;
    paths.emplace("", path);
  }
  for (const auto& [name, file] : paths)
    out.files_.push_back(RESHARD_TRY(PartFile::open(name, file)));
  for (const PartFile& file : out.files_)
    for (const Part& part : file.parts())
      out.by_name_.emplace(std::pair(std::string_view(file.name()), std::string_view(part.name)),
                           Place{&file, &part});
  return out;
}

Parts::Place Parts::find(std::string_view file, std::string_view name) const {
  const auto found = by_name_.find({file, name});
  return found == by_name_.end() ? Place{} : found->second;
}

Result<> Parts::unchanged() const {
  for (const PartFile& file : files_) RESHARD_TRY(file.unchanged());
  return {};
}

}  // namespace reshard::delta
