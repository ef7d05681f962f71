// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "reshard/base/file_descriptor.h"
#include "reshard/base/result.h"
#include "reshard/io/files/file_stamp.h"
#include "reshard/io/files/resume_journal.h"

namespace reshard {

/// A folder that appears under its name complete or not at all.
///
/// Files are written to "OUT.partial" beside it, which commit() renames to OUT. Only one process at
/// a time may write one OUT (an advisory lock on the partial folder, which ends with the process).
/// A partial folder outlives its writer only when that was given a key and had completed a file, or
/// was killed; a later writer of the same user with the same key takes it over, and no other writer
/// touches it. Not for use by several threads.
class OutputDir {
 public:
  /// The fingerprint of a file's content, one word. Errors name the path.
  using PrintOf = std::function<Result<std::string>(const std::string& path)>;

  /// Prepares to write the folder `target`. `resume_key` stands for the whole job (a digest of its
  /// inputs and options); "" means that it cannot be resumed. With a partial folder of the same key
  /// there, finished() names its complete files, whose content `print_of` finds as it was recorded,
  /// and everything else in it is removed. Errors: `target` exists; its parent folder does not;
  /// permission; another process is writing it; a partial folder of another job or user is there.
  static Result<OutputDir> create(const std::string& target, const std::string& resume_key = "",
                                  PrintOf print_of = {});

  OutputDir(OutputDir&&) noexcept;
  OutputDir& operator=(OutputDir&&) noexcept;
  /// Without commit: removes the partial folder unless it can be resumed.
  ~OutputDir();
  /// Nobody will resume this job: without commit nothing of it stays.
  void give_up() { key_.clear(); }

  const std::string& target() const { return target_; }
  /// The folder to write to until commit().
  const std::string& partial() const { return partial_; }
  /// Where to write the file of that name. @pre `name` is a plain file name
  std::string path_of(std::string_view name) const;

  /// Complete files: those of an earlier run and those of mark_finished.
  const FinishedFiles& finished() const { return finished_; }
  /// Records that the file of that name is complete and closed and what `print_of` will find it to
  /// be, so that a later run need not write it again.
  Result<> mark_finished(const std::string& name, const std::string& print = "");
  /// Writes a small file.
  Result<> write_text(std::string_view name, std::string_view text);

  /// Gives the folder its name; returns when the name is on the disk, and with `sync` all data too.
  /// Errors: a finished file is no longer what it was; `target` exists by now (the partial folder
  /// is then treated as without commit); another process took the partial folder away; the disk.
  /// Call it once, last.
  Result<> commit(bool sync = false);

 private:
  OutputDir() = default;
  static Result<OutputDir> lock(const std::string& target);
  Result<> take_over(const std::string& resume_key);
  Result<> keep_finished(const FinishedFiles& recorded);
  Result<bool> is_as_recorded(const std::string& path, const FinishedFile& file) const;
  Result<> check_finished() const;
  std::string journal_path() const;

  std::string target_, partial_, key_;
  FileDescriptor lock_;  ///< Open while this object owns the partial folder.
  ResumeJournal journal_;
  PrintOf print_of_;
  FinishedFiles finished_;
  std::map<std::string, FileStamp> stamps_;  ///< of finished_ when they were last looked at.
};

}  // namespace reshard
