// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "reshard/base/dtype.h"
#include "reshard/base/result.h"
#include "reshard/index/box.h"
#include "reshard/model/families/dtensor.h"
#include "reshard/refit/session.h"

/// Distributed tensors between any two meshes and placements: xferdtensor() as C++.
/// docs/xfer_api.md lists the names.
namespace reshard::dtensor {

/// The source or the target of a transfer. All but `local` is the same on all ranks.
struct TensorSide {
  DTensorMesh mesh;                   ///< ranks of the group.
  std::vector<Placement> placements;  ///< one for each dimension of the mesh.
  DType dtype = DType::bf16;
  /// This rank's shard: local_shape() elements, row-major, without gaps. Borrowed. Empty if the
  /// rank is not in the mesh, or if its shard has no elements.
  std::span<std::byte> local = {};
  /// The GPU that has `local`; null: the host. On each rank, all shards of one side are on the same
  /// device. A transfer reads and writes them after the work that the GPU's legacy default stream
  /// has by then.
  std::shared_ptr<const cuda::Device> device = nullptr;
};

/// The arguments of one xferdtensor(). F32, BF16 and F16 are converted to the target's dtype;
/// other dtypes must be equal.
struct TensorTransfer {
  Dims shape;  ///< of the whole tensor.
  TensorSide source = {}, target = {};
  std::string name = {};  ///< for errors; empty: "tensor N", where N counts transfers from 0.
};

/// A mesh of consecutive ranks from `first`, in row-major order.
DTensorMesh mesh_of(std::vector<Index> shape, Rank first = Rank(0));

/// Sizes of the groups of tensor, expert and pipeline parallelism.
struct ParallelSizes {
  Index tp = 1, ep = 1, pp = 1;
};
/// The mesh of `ranks` consecutive ranks from `first` with the dimensions "pp", "dp", "ep" and
/// "tp", the last the fastest; dp is what the others leave. Experts whose ranks are numbered
/// otherwise than tensor parallel ones need a mesh of their own, with tp = 1. Errors: the sizes do
/// not divide the ranks.
Result<DTensorMesh> build_mesh_info(Index ranks, Rank first, const ParallelSizes& sizes);

/// A mesh dimension that cuts a tensor dimension.
struct CutBy {
  std::string mesh_dim;  ///< one of DTensorMesh::dim_names.
  int dim = 0;           ///< of the tensor; negative counts from the last.
};
/// The placements of a tensor that these mesh dimensions cut and all others replicate. Errors: the
/// mesh has no dimension of this name; one is named twice.
Result<std::vector<Placement>> get_placements(const DTensorMesh& mesh,
                                              const std::vector<CutBy>& cuts);

/// The shape of a rank's shard; a dimension may be 0. Errors: the rank is not in the mesh;
/// placements that do not fit mesh or shape.
Result<Dims> local_shape(const Dims& shape, const TensorSide& side, Rank rank);

/// Transfers that were planned once and run as often as wanted, in one session.
class PreparedTransfers {
 public:
  /// Collective: every rank of the group passes the same transfers in the same order, each with its
  /// own memory, also a rank that has none. Transport, control plane and all `local` memory are
  /// borrowed; they must outlive this object and the last access by peers
  /// (ControlPlane::quiesce() or Transport::close()).
  ///
  /// Errors, on all ranks: a mesh, a placement or a shard that does not fit (transfer and rank are
  /// named); a target that shares memory with another tensor; ranks that say different things;
  /// those of Session::prepare(). An argument that is wrong leaves the group usable.
  static Result<PreparedTransfers> prepare(std::span<const TensorTransfer> transfers,
                                           Transport& transport, ControlPlane& control,
                                           const SessionOptions& options = {});
  PreparedTransfers(PreparedTransfers&&) noexcept;
  PreparedTransfers& operator=(PreparedTransfers&&) noexcept;
  ~PreparedTransfers();

  /// Collective. Brings every target to what its source holds now. Sources must not be written
  /// meanwhile. Returns once every rank has its values. Errors: those of Session::refit().
  Result<SessionReport> run();

 private:
  struct State;
  explicit PreparedTransfers(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// prepare() and run(), once.
Result<SessionReport> xferdtensors(std::span<const TensorTransfer> transfers, Transport& transport,
                                   ControlPlane& control, const SessionOptions& options = {});
Result<SessionReport> xferdtensor(const TensorTransfer& transfer, Transport& transport,
                                  ControlPlane& control, const SessionOptions& options = {});

}  // namespace reshard::dtensor
