// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/index/interval.h"
#include "reshard/io/checkpoint/safetensors.h"
#include "reshard/io/files/mapped_file.h"

namespace reshard::delta {

/// A run of bytes of a file, as io/delta/delta_index.h defines parts.
struct Part {
  std::string name;
  int width = 1;
  Index offset = 0, bytes = 0;  ///< in the file.
};

/// A file of a checkpoint and its parts, in their order, which cover it.
class PartFile {
 public:
  /// `path` is the file, `name` its name in the checkpoint. A file that ends in ".safetensors" must
  /// be one. Errors: those of SafetensorsFile::open; a tensor without a name.
  static Result<PartFile> open(std::string name, const std::string& path);

  const std::string& name() const { return name_; }
  const std::vector<Part>& parts() const { return parts_; }
  Index bytes() const { return parts_.back().offset + parts_.back().bytes; }
  /// A part's bytes from `begin` on, at most `bytes`. Valid while this object, or the one it is
  /// moved to, lives.
  std::span<const std::byte> data(const Part& part, Index begin, Index bytes) const;
  /// Releases the memory of these bytes after they were read.
  void drop(const Part& part, Index begin, Index bytes) const;
  Result<> unchanged() const;

 private:
  PartFile(std::string name, std::optional<SafetensorsFile> tensors,
           std::optional<MappedFile> content);
  const MappedFile* mapping() const;

  std::string name_;
  std::optional<SafetensorsFile> tensors_;
  std::optional<MappedFile> content_;  ///< neither: the file is empty.
  std::vector<Part> parts_;
};

/// All parts of a checkpoint on disk.
class Parts {
 public:
  struct Place {
    const PartFile* file = nullptr;
    const Part* part = nullptr;
  };

  /// Opens a folder or a file. Errors name the path: those of PartFile::open; it does not exist; an
  /// entry that is neither a file nor a folder; a link to a file outside the checkpoint; a folder
  /// without files; the system.
  static Result<Parts> open(const std::string& path);

  const std::string& path() const { return path_; }
  bool is_one_file() const { return is_one_file_; }
  /// Sorted by name.
  const std::vector<PartFile>& files() const { return files_; }
  /// A part by its file's name and its own, or nulls. Valid while this object lives.
  Place find(std::string_view file, std::string_view name) const;
  /// MappedFile::unchanged() of all files.
  Result<> unchanged() const;

 private:
  std::string path_;
  bool is_one_file_ = false;
  std::vector<PartFile> files_;
  std::map<std::pair<std::string_view, std::string_view>, Place> by_name_;
};

}  // namespace reshard::delta
