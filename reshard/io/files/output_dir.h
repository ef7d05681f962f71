// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "reshard/base/file.h"
#include "reshard/base/result.h"
#include "reshard/io/files/file_stamp.h"
#include "reshard/io/files/resume_journal.h"

namespace reshard {

/// An output folder that appears complete or not at all.
///
/// Files are written to "OUT.partial" beside it, which commit() renames to OUT. Only one process at
/// a time can write to OUT: it holds an advisory lock on the partial folder, which ends with the
/// process. A partial folder outlives its writer only if the writer was killed, or had a resume key
/// and had finished a file. A later writer of the same user with the same key resumes it; no other
/// writer touches it. Not thread-safe.
class OutputDir {
 public:
  /// Computes the fingerprint of a file's content, a string without spaces. Errors name the path.
  using Fingerprinter = std::function<Result<std::string>(const std::string& path)>;

  /// Prepares to write the folder `target`. `resume_key` identifies the job (a digest of its inputs
  /// and options); "" means that it cannot be resumed. If there is a partial folder with the same
  /// key, finished() lists the files whose fingerprint by `fingerprint_of` is still the recorded
  /// one, and everything else in the folder is removed. Errors: `target` exists; its parent folder
  /// does not; permission; another process is writing it; there is a partial folder of another job
  /// or user.
  static Result<OutputDir> create(const std::string& target, const std::string& resume_key = "",
                                  Fingerprinter fingerprint_of = {});

  OutputDir(OutputDir&&) noexcept;
  OutputDir& operator=(OutputDir&&) noexcept;
  /// Removes the partial folder unless it was committed or can be resumed.
  ~OutputDir();
  /// Makes this job impossible to resume: without commit() nothing of it stays.
  void give_up() { key_.clear(); }

  const std::string& target() const { return target_; }
  /// The folder to write to until commit().
  const std::string& partial() const { return partial_; }
  /// The path to write a file to. @pre `name` is a plain file name
  std::string path_of(std::string_view name) const;

  /// The complete files: those of an interrupted run and those of mark_finished().
  const FinishedFiles& finished() const { return finished_; }
  /// Records that a file is complete and closed, and its fingerprint by `fingerprint_of`, so that a
  /// resumed run need not write it again.
  Result<> mark_finished(const std::string& name, const std::string& fingerprint = "");
  /// Writes a small file.
  Result<> write_text(std::string_view name, std::string_view text);

  /// Renames the partial folder to `target`. Returns when the name is on the disk and, with `sync`,
  /// all data too. Errors: a finished file has changed; `target` exists by now (the partial folder
  /// is then treated as uncommitted); another process removed the partial folder; the disk. Call it
  /// once, last.
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
  Fingerprinter fingerprint_of_;
  FinishedFiles finished_;
  std::map<std::string, FileStamp> stamps_;  ///< of finished_, when last checked.
};

/// An output file that appears complete or not at all.
///
/// It is written as "OUT.partial" beside it, which commit() renames to OUT. A partial file that a
/// killed writer left is replaced. Not thread-safe.
class OutputFile {
 public:
  /// Prepares to write the file `target`; creates nothing. Errors: `target` exists; its folder does
  /// not; it has no file's name; the file at its partial name cannot be removed.
  static Result<OutputFile> create(const std::string& target);

  OutputFile(OutputFile&& other) noexcept
      : target_(std::move(other.target_)), partial_(std::exchange(other.partial_, {})) {}
  OutputFile& operator=(OutputFile&& other) noexcept {
    std::swap(target_, other.target_);
    std::swap(partial_, other.partial_);
    return *this;
  }
  /// Removes the partial file unless it was committed.
  ~OutputFile();

  /// The path to write until commit(). Nothing is there at first.
  const std::string& partial() const { return partial_; }

  /// Renames the partial file, which is written and closed, to `target`; returns when the name is
  /// on the disk. Errors: `target` exists by now; the disk. Call it once, last.
  Result<> commit();

 private:
  explicit OutputFile(const std::string& target) : target_(target), partial_(target + ".partial") {}

  std::string target_, partial_;  ///< partial_ is empty once committed or moved from.
};

}  // namespace reshard
