// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "reshard/base/file.h"
#include "reshard/base/result.h"

namespace reshard {

/// Size and fingerprint of a file that was complete, to check that it still is.
struct FinishedFile {
  std::int64_t bytes = 0;
  std::string fingerprint;  ///< of its content, without spaces; "" if unknown.
  friend bool operator==(const FinishedFile&, const FinishedFile&) = default;
};

/// The finished files of an output folder, by file name.
using FinishedFiles = std::map<std::string, FinishedFile>;

/// The record of an unfinished output folder: which job it belongs to, and which files are
/// complete.
///
/// A text file: a line with format and version, the key, the boot ID, then one line "BYTES
/// FINGERPRINT NAME" per complete file, appended when the file is complete ("-" for none). Strings
/// are JSON strings. A last line without a line break was cut off by a kill and is ignored.
struct ResumeRecord {
  std::string key;
  std::string boot;  ///< the page cache survives a kill but not a reboot: files of another boot are
                     ///< lost.
  FinishedFiles finished;
};

/// Parses a record. Errors are Code::corrupt and do not name the file.
Result<ResumeRecord> parse_resume_record(std::string_view text);

/// The boot ID of the system; "" if it has none.
std::string boot_identity();

/// A record on disk that is appended to. Not thread-safe.
class ResumeJournal {
 public:
  ResumeJournal() = default;
  /// Writes the record, atomically replacing an existing file, and keeps it open.
  static Result<ResumeJournal> create(const std::string& path, const ResumeRecord& record);
  /// Adds one complete file.
  Result<> append(const std::string& name, const FinishedFile& file);

 private:
  std::string path_;
  FileDescriptor fd_;
};

}  // namespace reshard
