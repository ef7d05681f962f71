// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "reshard/base/result.h"
#include "reshard/io/checkpoint/safetensors.h"
#include "reshard/io/delta/delta_index.h"
#include "reshard/io/files/mapped_file.h"

/// A delta as a file: safetensors, whose "__metadata__" is
///
///   format  "reshard.delta/1"
///   base    the fingerprint of the checkpoint to which the delta is applied
///   result  that of the checkpoint that this gives
///   anchor  that of the checkpoint with which the chain begins
///   step    the number of the delta in the chain, from 1
///   index   hash64() of the tensor "index"
///
/// with fingerprints and the hash as 16 hexadecimal digits. Tensors are of dtype U8: "index" is a
/// DeltaIndex; "FILE:TENSOR", for each part that changed or was added, the codes of its blocks one
/// after another. FILE is "" if the checkpoint is one file, TENSOR is "" for a header or a file
/// that is no safetensors.
namespace reshard {

inline constexpr std::string_view kDeltaFormat = "reshard.delta/1";
inline constexpr std::string_view kDeltaIndexName = "index";

/// The place of a delta in its chain.
struct DeltaLink {
  std::uint64_t base = 0, result = 0, anchor = 0;  ///< checkpoint_fingerprint() of each.
  std::int64_t step = 1;
  friend bool operator==(const DeltaLink&, const DeltaLink&) = default;
};

/// The metadata of a delta's file.
StringMap delta_metadata(const DeltaLink& link, std::span<const std::byte> index);
/// The name of the tensor with the codes of a part.
std::string delta_tensor_name(const DeltaPart& part);

/// The contents of a delta's file, but for the codes.
struct Delta {
  DeltaLink link;
  DeltaIndex index;  ///< the codes lie in the file where its blocks say.
};

/// Parses a delta's file; of the codes only the size is used. Errors: those of parse_safetensors;
/// `unsupported` for another version of the format; `corrupt`: it is no delta; an index that
/// differs from its hash, that parse_delta_index() refuses, or whose checkpoints have other
/// fingerprints than the metadata; a tensor that the index does not ask for, or of another size.
/// They do not name the file.
Result<Delta> parse_delta(std::span<const std::byte> file);

/// A delta's file open for reading. Const members may be called from several threads.
class DeltaFile {
 public:
  /// Errors: those of MappedFile::open and parse_delta, prefixed with the path.
  static Result<DeltaFile> open(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const MappedFile& mapping() const { return file_; }
  const DeltaLink& link() const { return delta_.link; }
  const DeltaIndex& index() const { return delta_.index; }
  /// The code of a block of one of the index's parts. Errors: `corrupt`, which names file and part,
  /// if it differs from its hash.
  Result<std::span<const std::byte>> code(const DeltaPart& part, std::size_t block) const;

 private:
  DeltaFile(MappedFile file, Delta delta) : file_(std::move(file)), delta_(std::move(delta)) {}
  MappedFile file_;
  Delta delta_;
};

}  // namespace reshard
