// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "reshard/base/file_descriptor.h"
#include "reshard/base/result.h"

namespace reshard {

/// A file that was complete, and how to see that it still is.
struct FinishedFile {
  std::int64_t bytes = 0;
  std::string print;  ///< of its content, one word; "" where none is known.
  friend bool operator==(const FinishedFile&, const FinishedFile&) = default;
};

/// File name -> what it was.
using FinishedFiles = std::map<std::string, FinishedFile>;

/// What an unfinished output folder knows of itself: whose job it is, and which files are complete.
///
/// A text file: a line of format and version, the key, the identity of the system's boot, then one
/// line "BYTES PRINT NAME" per complete file, appended as it is completed ("-" for no print);
/// strings are JSON strings. A last line without its end was cut off by a kill and does not count.
struct ResumeRecord {
  std::string key;
  std::string boot;  ///< Page cache outlives a killed process but no reboot: files of another boot
                     ///< are lost.
  FinishedFiles finished;
};

/// The record in `text`. Errors are Code::corrupt and do not name the file.
Result<ResumeRecord> parse_resume_record(std::string_view text);

/// The identity of this boot of the system; "" when it tells none.
std::string boot_identity();

/// The record on disk, to append to. Not for use by several threads at once.
class ResumeJournal {
 public:
  ResumeJournal() = default;
  /// Writes the file with this record, replacing what was there in one step, and keeps it open.
  static Result<ResumeJournal> create(const std::string& path, const ResumeRecord& record);
  /// Adds one complete file.
  Result<> append(const std::string& name, const FinishedFile& file);

 private:
  std::string path_;
  FileDescriptor fd_;
};

}  // namespace reshard
