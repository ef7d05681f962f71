// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/index/interval.h"
#include "reshard/transform/fingerprint.h"

/// The index of a delta: what each part of a checkpoint was and becomes.
///
/// A *part* is a run of bytes of one file of a checkpoint's folder. The first part of a safetensors
/// file is its header, with the 8 bytes of length, and has no name; each of its tensors is another
/// part of that name. Every other file is one part without a name. So the parts of all files, in
/// their order, are the checkpoint, byte for byte.
namespace reshard {

/// The code of a block of at most kDeltaBlockBytes bytes of a part; the last block may be shorter.
struct DeltaBlock {
  std::uint32_t bytes = 0;  ///< of the code; 0: the block is the same as in the base.
  std::uint64_t hash = 0;   ///< hash64() of the code.
  Index at = 0;             ///< the first byte of the code in the delta's file; not in its index.
  friend bool operator==(const DeltaBlock&, const DeltaBlock&) = default;
};

enum class PartState : std::uint8_t { unchanged, changed, added, removed };
/// "unchanged", "changed", "added", "removed"
std::string_view name(PartState state);

struct DeltaPart {
  std::string file;  ///< its path in the folder, with slashes; "" if the checkpoint is one file.
  std::string name;  ///< of the tensor; "": the header or the whole file.
  PartState state = PartState::unchanged;
  int width = 1;                     ///< bytes of an element: 1, 2, 4 or 8.
  Index bytes = 0;                   ///< a multiple of `width`.
  Fingerprint base{};                ///< of the bytes in the base; zero if `added`.
  Fingerprint result{};              ///< of those in the result; zero if `removed`.
  std::vector<DeltaBlock> blocks{};  ///< of all bytes if `changed` or `added`, else none.

  bool in_base() const { return state != PartState::added; }
  bool in_result() const { return state != PartState::removed; }
  bool has_codes() const { return in_result() && state != PartState::unchanged; }
  /// The bytes of all codes.
  Index code_bytes() const;
  friend bool operator==(const DeltaPart&, const DeltaPart&) = default;
};

/// The number of blocks of a part.
Index num_delta_blocks(Index part_bytes);

/// For error messages: "tensor a.weight of m.safetensors", "the header of m.safetensors",
/// "config.json".
std::string describe_part(std::string_view file, std::string_view name);

/// Checks the name of a file in a checkpoint's folder, with slashes, from untrusted input: each of
/// its names is a plain one, and it has at most 1024 bytes. Errors: `corrupt`.
Result<> check_delta_file_name(std::string_view path);

/// The parts in the order of their files' names. Those of a file that are in the result come first,
/// in their order in the file; then those that were removed, by name.
struct DeltaIndex {
  bool is_one_file = false;  ///< the checkpoint is a file and not a folder.
  std::vector<DeltaPart> parts;

  /// Bytes of the result.
  Index result_bytes() const;
  friend bool operator==(const DeltaIndex&, const DeltaIndex&) = default;
};

/// A part of one checkpoint. Borrows the texts.
struct CheckpointPart {
  std::string_view file, name;
  Index bytes = 0;
  Fingerprint fingerprint;
};

/// The fingerprint of a checkpoint: of the names, sizes and fingerprints of its parts, in any
/// order.
std::uint64_t checkpoint_fingerprint(std::vector<CheckpointPart> parts);
/// Those of the checkpoints before and after a delta.
std::uint64_t base_fingerprint(const DeltaIndex& index);
std::uint64_t result_fingerprint(const DeltaIndex& index);

/// The index as bytes. The same index gives the same bytes.
std::vector<std::byte> serialise(const DeltaIndex& index);

/// Parses an index from untrusted bytes; `at` of all blocks is 0. Allocates at most some ten times
/// the size of the bytes. Errors: `corrupt`, for bytes that serialise() does not write, and for an
/// index that is none of any two checkpoints: a file name that leaves the folder, parts out of
/// order or twice, sizes beyond 2^62, codes longer than those of their blocks.
Result<DeltaIndex> parse_delta_index(std::span<const std::byte> bytes);

}  // namespace reshard
