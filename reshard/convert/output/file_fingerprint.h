// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>

#include "reshard/transform/fingerprint.h"

namespace reshard::output {

/// The fingerprint of a file's content, added up from pieces in any order and from any thread.
class FileFingerprint {
 public:
  /// Of a file of so many bytes. @pre bytes >= 0
  explicit FileFingerprint(std::int64_t bytes);

  /// Adds the bytes from `offset` on. @pre they lie in the file, and none was added before
  void add(std::int64_t offset, std::span<const std::byte> piece);
  /// One word, the same however the file was cut.
  std::string text() const;

 private:
  FingerprintKey key_;
  mutable std::mutex mutex_;
  Fingerprint sum_;
};

/// The same of a whole file. Errors: those of MappedFile.
Result<std::string> fingerprint_of_file(const std::string& path);

}  // namespace reshard::output
