// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/ids.h"
#include "reshard/base/result.h"
#include "reshard/io/checkpoint/index.h"
#include "reshard/io/checkpoint/pieces.h"
#include "reshard/io/checkpoint/safetensors.h"

namespace reshard {

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

  Kind kind() const { return kind_; }
  /// The folder of the files.
  const std::string& folder() const { return folder_; }
  /// The safetensors files; none if kind() is dcp.
  const std::vector<SafetensorsFile>& files() const { return files_; }
  std::size_t num_files() const { return files_.size() + mapped_.size(); }
  /// A file, mapped. @pre file < num_files()
  const MappedFile& mapping(std::size_t file) const {
    return files_.empty() ? mapped_[file] : files_[file].mapping();
  }

  /// All tensors, sorted by name. @pre kind() == Kind::hf
  const std::vector<CheckpointTensor>& tensors() const;
  /// The local tensors of a rank, sorted by name. If kind() is dcp, these are the pieces.
  /// @pre kind() != Kind::hf, 0 <= rank < world_size()
  const std::vector<CheckpointTensor>& tensors(Rank rank) const;
  /// All tensors with their dtypes and shapes, in the order of the files.
  /// @pre kind() != Kind::ranks
  std::vector<TensorSpec> whole_tensors() const;
  /// How tensors are stored in pieces; nothing unless kind() is dcp.
  const TensorPieces& pieces() const { return pieces_; }
  /// The new name of a tensor of pieces().tensors. If the name is empty, the tensor becomes an
  /// entry of pieces().others.
  struct Renaming {
    std::string name;
    EntryKind kind = EntryKind::tensor;
  };
  /// Errors: two pieces of one name. @pre kind() == Kind::dcp, one Renaming for each tensor
  Result<> rename(const std::vector<Renaming>& renamed);
  /// The layout's notation; empty for Kind::hf, "dcp" for Kind::dcp.
  const std::string& layout() const { return layout_; }
  /// The number of ranks; 1 for Kind::hf and Kind::dcp.
  int world_size() const { return static_cast<int>(list_of_rank_.size()); }

  /// The tensor's bytes. Valid while this object, or the one it is moved to, lives.
  /// @pre `tensor` is one of this checkpoint's
  std::span<const std::byte> data(const CheckpointTensor& tensor) const {
    return mapping(tensor.file)
        .bytes()
        .subspan(static_cast<std::size_t>(tensor.offset), static_cast<std::size_t>(tensor.bytes));
  }
  /// Releases the memory of the tensor's bytes after they were read; see MappedFile::drop.
  void drop(const CheckpointTensor& tensor) const {
    mapping(tensor.file).drop(tensor.offset, tensor.bytes);
  }

  /// MappedFile::unchanged() of all files: call it after reading, before relying on what was read.
  Result<> unchanged() const;

  /// The path of the config.json in the folder, or none.
  std::optional<std::string> config_path() const;

 private:
  using List = std::vector<CheckpointTensor>;

  static Result<Checkpoint> open_file(const std::string& path);
  static Result<Checkpoint> open_hf_index(const std::string& path);
  static Result<Checkpoint> open_rank_index(const std::string& path);
  static Result<Checkpoint> open_dcp(const std::string& path);
  static Result<Checkpoint> open_sharded(const std::string& folder,
                                         const std::vector<std::string>& paths);
  static Result<Checkpoint> of_pieces(const std::string& path, std::vector<MappedFile> files,
                                      TensorPieces pieces, List list);
  List list_file(std::size_t file) const;

  Kind kind_ = Kind::hf;
  std::string folder_;
  std::string layout_;
  std::vector<SafetensorsFile> files_;
  std::vector<MappedFile> mapped_;  ///< instead of files_ if kind() is dcp.
  TensorPieces pieces_;
  std::vector<List> lists_;
  std::vector<std::size_t> list_of_rank_;
};

/// Finds a tensor in a list sorted by name, or null.
const CheckpointTensor* find_tensor(const std::vector<CheckpointTensor>& tensors,
                                    std::string_view name);

}  // namespace reshard
