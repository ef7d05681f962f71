// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/io/checkpoint/safetensors.h"
#include "reshard/io/checkpoint/tensor_file_writer.h"
#include "reshard/model/tensor.h"

namespace reshard {

/// The plan of a `.distcp` file. Each tensor is in an item, which is an archive of its own.
struct DcpFilePlan {
  struct Item {
    std::int64_t offset = 0, bytes = 0;
  };
  std::vector<StoredTensor> tensors;  ///< in the order of the request.
  std::vector<Item> items;            ///< likewise.
  std::int64_t file_bytes = 0;
};

/// Plans a file; touches none. Errors: a dtype that torch lacks; shapes that stored_bytes()
/// refuses; a file size that overflows int64.
Result<DcpFilePlan> plan_dcp_file(std::span<const TensorSpec> tensors);

/// Writes one `.distcp` file of torch.distributed.checkpoint. As SafetensorsWriter: create()
/// allocates the whole file, and a writer that is destroyed before finish() removes its file.
class DcpWriter final : public TensorFileWriter {
 public:
  /// Errors: those of plan_dcp_file() and files::create_file().
  static Result<DcpWriter> create(const std::string& path, std::span<const TensorSpec> tensors,
                                  Watcher watcher = {});
  /// Writes no file: the watcher sees the bytes that one would have.
  static Result<DcpWriter> rehearse(std::span<const TensorSpec> tensors, Watcher watcher);
  DcpWriter(DcpWriter&&) noexcept;
  DcpWriter& operator=(DcpWriter&&) noexcept;
  ~DcpWriter() override;

  Result<> write_at(std::size_t tensor, std::int64_t offset,
                    std::span<const std::byte> data) override;
  Result<> finish(bool sync) override;

 private:
  struct State;
  explicit DcpWriter(std::unique_ptr<State> state);
  /// An empty `path`: no file.
  static Result<DcpWriter> make(const std::string& path, std::span<const TensorSpec> tensors,
                                Watcher watcher);
  std::unique_ptr<State> state_;
};

/// A piece of a tensor in a `.distcp` file.
struct DcpPiece {
  std::string tensor;
  Dims offsets, sizes;
  std::string file;
  DcpFilePlan::Item item;
};

/// An entry of `.metadata` that is an object, pickled to an item.
struct DcpObject {
  std::string name;
  std::string file;
  DcpFilePlan::Item item;
};

/// The bytes of the `.metadata` of these pieces of tensors, and of objects. Pieces of one tensor
/// are in the order in which they come; tensors without any are left out. @pre the pieces are of
/// these tensors, and names are UTF-8
std::string dcp_metadata(std::span<const TensorSpec> tensors, std::span<const DcpPiece> pieces,
                         std::span<const DcpObject> objects = {});

/// The file that torch.save makes of the list [None].
std::string saved_none();
/// The common.pt of a checkpoint of Megatron's dist_checkpointing, for torch.load: a dict with its
/// content_metadata, which says whether the layers of the decoder are stacked.
std::string megatron_common(bool stacked);

/// The metadata of a safetensors file that holds these pieces, each under its tensor's name, as
/// torch's HuggingFaceStorageWriter writes it. Uses names and offsets. @pre the names are UTF-8
StringMap sharded_file_metadata(std::span<const DcpPiece> pieces);

/// "shard-00004-model-00001-of-00001.safetensors": the file of rank 3.
std::string sharded_file_name(Rank rank);

/// "__3_0.distcp": the first file of rank 3.
std::string dcp_file_name(Rank rank);

}  // namespace reshard
