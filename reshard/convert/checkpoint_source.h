// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "reshard/convert/slot_files.h"
#include "reshard/exec/rank_buffers.h"
#include "reshard/io/make_layout.h"
#include "reshard/io/open_model.h"

namespace reshard {

/// The local tensors of a checkpoint as memory to read from: its mapped files.
class CheckpointSource {
 public:
  /// Binds every local tensor that the checkpoint's own side stores to its place in the files. The
  /// checkpoint must outlive the result. Errors: another number of ranks; a local tensor that is
  /// missing, not of the layout (nor to be ignored), or of another dtype or shape (file and tensor
  /// named). @pre model.weights
  static Result<CheckpointSource> bind(const Model& model, const LayoutSide& own);
  /// The same of own_side(). @pre `own` is own_layout() of the model
  static Result<CheckpointSource> bind(const Model& model,
                                       const std::shared_ptr<const ModelLayout>& own);

  const RankBuffers& buffers() const { return buffers_; }
  /// Local tensors of ranks whose shape in the files is the layout's but for dimensions of one
  /// element, a line each; bind() reads over those. None of a checkpoint of kind hf, whose writers
  /// disagree about them.
  const std::vector<std::string>& other_shapes() const { return other_shapes_; }
  /// Gives the memory of a byte range of a local tensor back; what is read again is fetched again.
  void drop(Rank r, SlotId slot, Index offset, Index bytes) const;

 private:
  CheckpointSource(const Model& model, SlotFiles files, RankBuffers buffers)
      : checkpoint_(&*model.weights),
        ignore_(model.ignore),
        files_(std::move(files)),
        buffers_(std::move(buffers)) {}
  static Result<CheckpointSource> bind(const Model& model, std::shared_ptr<const ModelLayout> own,
                                       SlotFiles files);
  const std::vector<CheckpointTensor>& stored(Rank r) const;
  Result<> bind_rank(Rank r);
  void compare_shape(Rank r, const CheckpointTensor& tensor, const Dims& as_slot, const Dims& held);

  /// Scales that are stored in BF16 or F16, as the F32 that they are read as.
  Result<> bind_as_float(Rank r, SlotId slot, const CheckpointTensor& tensor);

  const Checkpoint* checkpoint_;
  std::set<std::string> ignore_;  ///< patterns of tensors that files of ranks may have besides.
  SlotFiles files_;
  std::vector<std::unique_ptr<std::byte[]>> converted_;
  std::set<std::pair<Rank, SlotId>> is_converted_;
  RankBuffers buffers_;
  std::vector<std::string> other_shapes_;
};

}  // namespace reshard
