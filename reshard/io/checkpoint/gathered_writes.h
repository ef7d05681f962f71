// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "reshard/base/result.h"

namespace reshard::checkpoint {

/// Gathers small pieces of a file, so that neighbours take one write. Holds at most 16 MiB of them.
/// Thread-safe.
class GatheredWrites {
 public:
  /// A file with `bytes` bytes. `fd` and `path`, for messages, outlive this.
  GatheredWrites(int fd, const std::string& path, std::int64_t bytes)
      : fd_(fd), path_(path), bytes_(bytes) {}

  /// Writes `data` at byte `offset` of the file, now or later; large pieces now. Errors name the
  /// path; they may be those of earlier pieces. @pre the range lies in the file, and no byte of it
  /// was written before
  Result<> write(std::span<const std::byte> data, std::int64_t offset);
  /// Writes what was gathered. Call it last.
  Result<> finish();

 private:
  /// A range of bytes of a block.
  struct Range {
    std::size_t begin = 0, end = 0;
  };
  /// A run of the file that begins at a multiple of its size.
  struct Block {
    std::unique_ptr<std::byte[]> bytes = {};
    std::vector<Range> filled = {};  ///< without neighbours, sorted.
    std::size_t missing = 0;         ///< bytes that have not come.
  };
  /// Adds a piece to its block. Returns a block to write; without bytes if there is none.
  std::pair<std::int64_t, Block> add(std::int64_t block, std::size_t at,
                                     std::span<const std::byte> piece);
  Result<> write_block(std::int64_t block, const Block& content) const;

  int fd_;
  const std::string& path_;
  std::int64_t bytes_;
  std::mutex mutex_;
  std::map<std::int64_t, Block> blocks_;  ///< by their numbers.
};

}  // namespace reshard::checkpoint
