// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/ids.h"
#include "reshard/base/result.h"
#include "reshard/io/checkpoint/stored_tensor.h"

namespace reshard {

enum class EntryKind : std::uint8_t;
class MappedFile;
class SafetensorsFile;
struct TensorPieces;

/// A tensor of a checkpoint. Its bytes are in files()[file].
struct CheckpointTensor : StoredTensor {
  std::size_t file = 0;
};

/// A checkpoint on disk, open for reading: its files are mapped, their headers checked, and the
/// index agrees with them. Const members may be called from several threads.
class Checkpoint {
 public:
  enum class Kind {
    hf,     ///< whole tensors under Hugging Face names, in one or more files.
    ranks,  ///< local tensors in the layout layout(), one file per rank.
    dcp,    ///< pieces of tensors, as torch.distributed.checkpoint writes them.
  };

  /// Opens a folder with reshard.json, model.safetensors.index.json, model.safetensors or
  /// .metadata, or one of those files, or any safetensors file. A folder with two of them is
  /// refused; name one instead. A folder with none of them, but with safetensors files of pieces
  /// (DCP_SHARDING_INFO), is opened with all of these. Errors name the path: it contains no
  /// checkpoint; a listed file or tensor is missing; a tensor is not listed, or is in two files; a
  /// file of pieces that was not named by its folder; and those of parse_hf_index,
  /// parse_rank_index, SafetensorsFile::open, open_sharded_files and, for .metadata, which is read
  /// without running any of it, a class that torch's checkpoints do not have.
  static Result<Checkpoint> open(const std::string& path);
  /// Whether a folder contains an index, the usual single file, or files of pieces (the first
  /// file's header is read). open() may still refuse it.
  static bool is_in(const std::string& folder);
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  Kind kind() const;
  /// The folder of the files.
  const std::string& folder() const;
  /// The safetensors files; none if kind() is dcp.
  const std::vector<SafetensorsFile>& files() const;
  std::size_t num_files() const;
  /// A file, mapped. @pre file < num_files()
  const MappedFile& mapping(std::size_t file) const;

  /// All tensors, sorted by name. @pre kind() == Kind::hf
  const std::vector<CheckpointTensor>& tensors() const;
  /// The local tensors of a rank, sorted by name. If kind() is dcp, these are the pieces.
  /// @pre kind() != Kind::hf, 0 <= rank < world_size()
  const std::vector<CheckpointTensor>& tensors(Rank rank) const;
  /// All tensors with their dtypes and shapes, in the order of the files.
  /// @pre kind() != Kind::ranks
  std::vector<TensorSpec> whole_tensors() const;
  /// How tensors are stored in pieces; nothing unless kind() is dcp.
  const TensorPieces& pieces() const;
  /// The new name of a tensor of pieces().tensors. If the name is empty, the tensor becomes an
  /// entry of pieces().others.
  struct Renaming {
    std::string name;
    EntryKind kind = {};  ///< EntryKind::tensor.
  };
  /// Errors: two pieces of one name. @pre kind() == Kind::dcp, one Renaming for each tensor
  Result<> rename(const std::vector<Renaming>& renamed);
  /// The layout's notation; empty for Kind::hf, "dcp" for Kind::dcp.
  const std::string& layout() const;
  /// The number of ranks; 1 for Kind::hf and Kind::dcp.
  int world_size() const;

  /// The tensor's bytes. Valid while this object, or the one it is moved to, lives.
  /// @pre `tensor` is one of this checkpoint's
  std::span<const std::byte> data(const CheckpointTensor& tensor) const;
  /// Releases the memory of the tensor's bytes after they were read; see MappedFile::drop.
  void drop(const CheckpointTensor& tensor) const;

  /// MappedFile::unchanged() of all files: call it after reading, before relying on what was read.
  Result<> unchanged() const;

  /// The path of the config.json in the folder, or none.
  std::optional<std::string> config_path() const;

 private:
  class State;
  explicit Checkpoint(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// Finds a tensor in a list sorted by name, or null.
const CheckpointTensor* find_tensor(const std::vector<CheckpointTensor>& tensors,
                                    std::string_view name);

}  // namespace reshard
