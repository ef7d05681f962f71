// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "reshard/base/hash.h"
#include "reshard/io/files/file_stamp.h"
#include "reshard/io/files/mapped_file.h"
#include "reshard/io/open_model.h"
#include "reshard/model/layout_spec.h"

namespace reshard::output {

/// Stamps of the files that a conversion reads, taken before it reads them. The output is valid
/// only if they still match.
class InputFiles {
 public:
  /// Stamps the configs and indexes that exist for the checkpoint at `path`, a folder or a file in
  /// one. Construct before any of them is read.
  explicit InputFiles(const std::string& path);
  /// Stamps the files that a layout names, relative to `folder`. Call before they are read.
  void add(const LayoutSpec& layout, const std::string& folder);
  /// Stamps the config of an adapter. Call before it is read.
  void add_adapter(const std::string& folder);
  /// Adds the files of weights and adapters, stamped when they were opened. Borrows the model.
  /// @pre model.weights
  void add(const Model& model);

  /// Adds names, sizes, times and inodes to the resume key of a job.
  void add_to(Digest& digest) const;
  /// True if is_open_for_writing() one of the files of weights. Stamps do not say then that
  /// nothing changed.
  bool are_open_for_writing() const;
  /// Errors: those of MappedFile::unchanged() and check_unchanged().
  Result<> unchanged() const;

 private:
  struct File {
    std::string path;
    FileStamp stamp;
  };
  void note(const std::string& path);

  std::vector<File> files_;
  std::vector<const MappedFile*> mapped_;  ///< of weights and adapters.
};

}  // namespace reshard::output
