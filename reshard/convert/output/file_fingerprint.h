// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>

#include "reshard/transform/fingerprint.h"
#include "reshard/transform/fingerprint_key.h"

namespace reshard::output {

/// The fingerprint of a file's content, summed over pieces in any order. Thread-safe.
class FileFingerprint {
 public:
  /// For a file of `bytes` bytes. @pre bytes >= 0
  explicit FileFingerprint(std::int64_t bytes);

  /// Adds the bytes at `offset`. @pre they lie in the file, and none was added before
  void add(std::int64_t offset, std::span<const std::byte> piece);
  /// The sum so far.
  Fingerprint value() const;
  /// One word of text, independent of how the file was cut.
  std::string text() const;

 private:
  FingerprintKey key_;
  mutable std::mutex mutex_;
  Fingerprint sum_;
};

/// The fingerprint of a whole file. Errors: those of MappedFile.
Result<std::string> fingerprint_of_file(const std::string& path);

}  // namespace reshard::output
