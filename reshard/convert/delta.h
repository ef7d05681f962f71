// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/exec/progress.h"
#include "reshard/index/interval.h"

/// Deltas between two versions of a checkpoint, as files that apply to the earlier one. They are
/// exact: the result is the later checkpoint, every file of it byte for byte.
///
/// A checkpoint is here a folder, with all its files in any format, or one file. Files whose names
/// begin with '.' belong to the machine and not to the checkpoint, but for .metadata. Deltas of one
/// chain begin at an *anchor*, a whole checkpoint, and each begins where the last one ended.
namespace reshard {

struct MakeDeltaOptions {
  std::string base, next;  ///< checkpoints, both folders or both files.
  std::string output;      ///< the file to write; must not exist.
  std::string after = {};  ///< the delta that ends at `base`; empty: `base` is an anchor.
  bool sync = false;       ///< return only when all data is on the disk.
  int threads = 0;         ///< 0: one per core that this process may use.
  Progress progress = {};  ///< bytes of both checkpoints' parts; returning false cancels.
};

/// A tensor, header or other file that a delta changes.
struct DeltaChange {
  std::string file, name;  ///< DeltaPart's.
  std::string state;       ///< "changed", "added" or "removed".
  Index bytes = 0;         ///< of the tensor or file.
  Index delta_bytes = 0;   ///< of its codes.
};

/// The contents of a delta's file.
struct DeltaReport {
  std::string base, result, anchor;    ///< fingerprints of checkpoints, 16 hexadecimal digits.
  std::int64_t step = 1;               ///< its number in its chain.
  Index unchanged = 0;                 ///< tensors, headers and other files that stay as they are.
  std::vector<DeltaChange> changes{};  ///< all others, in the order of their files.
  Index result_bytes = 0;              ///< of the checkpoint that it gives.
  Index delta_bytes = 0;               ///< of the file.
  double seconds = 0;                  ///< of the whole call.

  /// Bytes of the file for each byte of the checkpoint; 0 for an empty checkpoint.
  double share() const {
    return result_bytes > 0 ? static_cast<double>(delta_bytes) / static_cast<double>(result_bytes)
                            : 0;
  }
};

/// Writes the delta that makes `next` of `base`. The same checkpoints give the same file. It
/// appears complete or not at all. Memory: some 16 MB per thread, and 100 bytes per MB of the
/// checkpoints. Errors: a folder and a file; a link to a file outside its checkpoint; a broken
/// safetensors file; `after` ends at another checkpoint than `base`, named with its first part that
/// differs; an input that changed meanwhile; the disk; `aborted` if `progress` cancelled.
Result<DeltaReport> make_delta(const MakeDeltaOptions& options);

struct ApplyDeltasOptions {
  std::string base;                 ///< a checkpoint, a folder or a file.
  std::vector<std::string> deltas;  ///< files, each beginning where the last one ends.
  std::string output;               ///< the checkpoint to write; must not exist.
  bool sync = false;                ///< return only when all data is on the disk.
  int threads = 0;                  ///< 0: one per core that this process may use.
  Progress progress = {};           ///< bytes of the result; returning false cancels.
};

struct ApplyDeltasReport {
  std::string base, result;          ///< fingerprints of checkpoints.
  std::int64_t first_step = 1;       ///< of the first delta,
  std::int64_t step = 1;             ///< and of the last one.
  Index files = 0;                   ///< of the result.
  Index bytes = 0, delta_bytes = 0;  ///< of the result, and of all deltas' files.
  double seconds = 0;                ///< of the whole call.
};

/// Writes the checkpoint that all deltas together make of `base`, in one pass over it. The output
/// appears complete or not at all, and only if every part of it has the fingerprint that the last
/// delta says. Memory: 1 MB per thread, and the indices of the deltas. Errors: those of
/// DeltaFile::open; `base` is another checkpoint than the first delta's, named with the part that
/// differs; a delta that begins elsewhere than the last one ends; damaged codes; `output` exists;
/// an input that changed meanwhile; the disk; `aborted` if `progress` cancelled.
Result<ApplyDeltasReport> apply_deltas(const ApplyDeltasOptions& options);

/// Reads what a delta's file says. Errors: those of DeltaFile::open.
Result<DeltaReport> inspect_delta(const std::string& path);

}  // namespace reshard
