// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reshard/convert/computed_weights.h"
#include "reshard/convert/slot_files.h"
#include "reshard/exec/rank_buffers.h"
#include "reshard/io/files/mapped_file.h"
#include "reshard/io/make_layout.h"
#include "reshard/io/open_model.h"

namespace reshard {

/// The local tensors of a checkpoint as read-only memory: its mapped files, and what is decoded
/// from them.
class CheckpointSource {
 public:
  /// Binds every local tensor of `own`, the checkpoint's own side, to its bytes in the files. The
  /// checkpoint must outlive the result. Errors, which name file and tensor: a local tensor that is
  /// missing, that the layout lacks and nobody ignored, or of another dtype or shape; another
  /// number of ranks; those of ComputedWeights::compute(). @pre model.weights
  static Result<CheckpointSource> bind(const Model& model, const LayoutSide& own);
  /// The same for own_side(). @pre `own` is own_layout() of the model
  static Result<CheckpointSource> bind(const Model& model,
                                       const std::shared_ptr<const ModelLayout>& own);

  const RankBuffers& buffers() const { return buffers_; }
  /// Local tensors whose shape in the files differs from the layout's by dimensions of one element,
  /// which bind() accepts; a line each. Empty for checkpoints of kind hf, whose writers disagree
  /// about such dimensions.
  const std::vector<std::string>& other_shapes() const { return other_shapes_; }
  /// Lets the kernel begin to read this part of a local tensor from its file. Returns at once.
  /// Nothing happens to tensors that are not in a file.
  void prefetch(std::span<const std::byte> memory) const;
  /// Lets the kernel reclaim this part of a local tensor; a later read fetches it again.
  void drop(std::span<const std::byte> memory) const;

 private:
  /// The file that is mapped there; null if none is.
  const MappedFile* file_at(const std::byte* memory) const;
  CheckpointSource(const Model& model, ComputedWeights computed, SlotFiles files,
                   RankBuffers buffers)
      : checkpoint_(&*model.weights),
        ignore_(model.ignore),
        files_(std::move(files)),
        computed_(std::move(computed)),
        buffers_(std::move(buffers)) {}
  static Result<CheckpointSource> bind(const Model& model, std::shared_ptr<const ModelLayout> own,
                                       SlotFiles files);
  const std::vector<CheckpointTensor>& stored(Rank r) const;
  Result<> bind_rank(Rank r);
  /// The names of the rank's tensors that no slot asks for.
  std::vector<std::string_view> misfits(Rank r) const;
  void compare_shape(Rank r, const CheckpointTensor& tensor, const Dims& as_slot,
                     const Dims& in_file);

  /// Binds scales that are stored in BF16, F16 or F8_E8M0, widened to F32.
  Result<> bind_as_float(Rank r, SlotId slot, const CheckpointTensor& tensor);

  const Checkpoint* checkpoint_;
  std::set<std::string> ignore_;  ///< patterns of extra tensors that files of ranks may have.
  SlotFiles files_;
  ComputedWeights computed_;
  std::vector<std::unique_ptr<std::byte[]>> converted_;
  std::map<const std::byte*, const MappedFile*> mapped_;  ///< by first byte.
  RankBuffers buffers_;
  std::vector<std::string> other_shapes_;
};

}  // namespace reshard
