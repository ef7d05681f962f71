// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "reshard/base/hash.h"
#include "reshard/io/checkpoint/checkpoint.h"
#include "reshard/io/files/file_stamp.h"
#include "reshard/model/layout_spec.h"

namespace reshard::output {

/// The files that a conversion reads, as they were before it read them. What is written counts only
/// while they are still the same.
class InputFiles {
 public:
  /// Notes the configs and indexes of the checkpoint at `path`, a folder or a file in one, as far
  /// as they are there. To call before any of them is read.
  explicit InputFiles(const std::string& path);
  /// Notes the files that a layout names, relative to `folder`. To call before they are read.
  void add(const LayoutSpec& layout, const std::string& folder);
  /// Notes the files of weights as they were when they were opened. @pre the checkpoint outlives
  /// this object
  void add(const Checkpoint& checkpoint);

  /// Names, sizes, times and identities, for the key of a job.
  void add_to(Digest& digest) const;
  /// Errors: those of MappedFile::unchanged() and check_unchanged().
  Result<> unchanged() const;

 private:
  struct File {
    std::string path;
    FileStamp stamp;
  };
  void note(const std::string& path);

  std::vector<File> files_;
  const Checkpoint* weights_ = nullptr;
};

}  // namespace reshard::output
