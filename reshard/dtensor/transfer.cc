// SPDX-License-Identifier: Apache-2.0
#include "reshard/dtensor/transfer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "reshard/cuda/device.h"
#include "reshard/exec/agreement.h"
#include "reshard/model/explicit_slots.h"
#include "reshard/model/families.h"

namespace reshard::dtensor {
namespace {

std::string name_of(const TensorTransfer& transfer, std::size_t number) {
  return transfer.name.empty() ? fmt::format("tensor {}", number) : transfer.name;
}

/// The layout of one side of all transfers. `side`: "source" or "target".
Result<std::shared_ptr<const ModelLayout>> layout_of(
    const char* side, TensorSide TensorTransfer::* part, std::span<const TensorTransfer> transfers,
    const std::shared_ptr<const ModelSpec>& model) {
  std::vector<DTensorMesh> meshes;
  std::vector<PlacedTensor> placed;
  std::map<std::pair<std::vector<Index>, std::vector<Rank>>, std::size_t> known;
  for (const TensorTransfer& transfer : transfers) {
    const TensorSide& here = transfer.*part;
    const auto [at, is_new] =
        known.emplace(std::pair(here.mesh.shape, here.mesh.ranks), meshes.size());
    if (is_new) meshes.push_back(here.mesh);
    placed.push_back({at->second, here.placements, here.dtype});
  }
  return std::make_shared<const ModelLayout>(
      RESHARD_TRY(dtensor_layout(side, model, meshes, placed)));
}

std::string where_is(const std::shared_ptr<const cuda::Device>& device) {
  return device == nullptr ? "the host" : fmt::format("GPU {}", device->ordinal());
}

/// Binds this rank's shards. Errors: a shard of another size than the layout says, or that is
/// missing; memory on a rank that is not in the mesh; shards on several devices.
Result<> bind(RankBuffers& buffers, TensorSide TensorTransfer::* part,
              std::span<const TensorTransfer> transfers, Rank me) {
  std::vector<bool> has(transfers.size(), false);
  std::optional<std::size_t> first;  // whose memory says the device
  const ModelLayout& layout = buffers.layout();
  for (const SlotId slot : layout.slots_of(me)) {
    const auto tensor = layout.model().find(layout.slot(slot).name)->index();
    has[tensor] = true;
    const TensorSide& side = transfers[tensor].*part;
    RESHARD_TRY(buffers.bind(me, slot, side.local));
    if (side.local.empty()) continue;
    if (!first) first = tensor;
    const auto &there = (transfers[*first].*part).device, &here = side.device;
    if (where_is(here) != where_is(there))
      return fail(Code::invalid_argument,
                  fmt::format("{}: {} is on {}, but that of {} on {}",
                              name_of(transfers[tensor], tensor), buffers.layout().name(),
                              where_is(here), name_of(transfers[*first], *first), where_is(there)));
    if (first == tensor && here != nullptr) buffers.set_device(here);
  }
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    const std::size_t bytes = (transfers[i].*part).local.size();
    if (!has[i] && bytes > 0)
      return fail(Code::invalid_argument,
                  fmt::format("{}: {} has {} bytes of memory on rank {}, which has no shard of it",
                              name_of(transfers[i], i), layout.name(), bytes, me.value()));
  }
  return {};
}

}  // namespace

DTensorMesh mesh_of(std::vector<Index> shape, Rank first) {
  DTensorMesh mesh{.name = "mesh", .shape = std::move(shape), .ranks = {}};
  Index size = 1;
  // A shape that is no mesh gets no ranks, and is refused with the reason where it is used.
  for (const Index n : mesh.shape) size = n < 1 || size > kMaxExplicitRanks / n ? 0 : size * n;
  for (Index i = 0; i < size; ++i)
    mesh.ranks.emplace_back(static_cast<Rank::rep>(first.value() + i));
  return mesh;
}

Result<DTensorMesh> build_mesh_info(Index ranks, Rank first, const ParallelSizes& sizes) {
  const auto [tp, ep, pp] = sizes;
  const bool fits = tp >= 1 && ep >= 1 && pp >= 1 && ranks >= 1 && ranks <= kMaxExplicitRanks &&
                    tp <= ranks && ep <= ranks / tp && pp <= ranks / tp / ep &&
                    ranks % (tp * ep * pp) == 0;
  if (!fits)
    return fail(Code::invalid_argument,
                fmt::format("build_mesh_info: tp={}, ep={}, pp={} do not divide {} ranks", tp, ep,
                            pp, ranks));
  DTensorMesh mesh = mesh_of({pp, ranks / (tp * ep * pp), ep, tp}, first);
  mesh.dim_names = {"pp", "dp", "ep", "tp"};
  return mesh;
}

Result<std::vector<Placement>> get_placements(const DTensorMesh& mesh,
                                              const std::vector<CutBy>& cuts) {
  std::vector<Placement> placements(mesh.shape.size());
  for (const CutBy& cut : cuts) {
    const auto at = std::find(mesh.dim_names.begin(), mesh.dim_names.end(), cut.mesh_dim);
    const auto k = static_cast<std::size_t>(at - mesh.dim_names.begin());
    if (k >= placements.size())
      return fail(Code::invalid_argument,
                  fmt::format("get_placements: the mesh has no dimension '{}', but {}",
                              cut.mesh_dim, fmt::join(mesh.dim_names, ", ")));
    if (placements[k].kind != Placement::Kind::replicate)
      return fail(Code::invalid_argument,
                  fmt::format("get_placements: '{}' is named twice", cut.mesh_dim));
    placements[k] = {Placement::Kind::shard, cut.dim, 1};
  }
  return placements;
}

Result<Dims> local_shape(const Dims& shape, const TensorSide& side, Rank rank) {
  auto model = std::make_shared<ModelSpec>();
  RESHARD_TRY(model->add("tensor", shape, side.dtype));
  const std::vector<PlacedTensor> placed{{0, side.placements, side.dtype}};
  const ModelLayout layout =
      RESHARD_TRY(dtensor_layout("side", std::move(model), std::span(&side.mesh, 1), placed));
  const auto slots = layout.slots_of(rank);
  if (slots.empty())
    return fail(Code::invalid_argument, fmt::format("rank {} is not in the mesh", rank.value()));
  return layout.local_shape(slots.front(), rank);
}

struct PreparedTransfers::State {
  std::shared_ptr<const ModelLayout> source_layout, target_layout;
  std::optional<RankBuffers> source, target;
  std::optional<Session> session;
  std::int64_t version = 0;

  /// Everything that needs no other rank: layouts, and this rank's memory in them.
  Result<> begin(std::span<const TensorTransfer> transfers, Rank me) {
    auto model = std::make_shared<ModelSpec>();
    for (std::size_t i = 0; i < transfers.size(); ++i)
      RESHARD_TRY(
          model->add(name_of(transfers[i], i), transfers[i].shape, transfers[i].source.dtype));
    source_layout = RESHARD_TRY(layout_of("source", &TensorTransfer::source, transfers, model));
    target_layout = RESHARD_TRY(layout_of("target", &TensorTransfer::target, transfers, model));
    RESHARD_TRY(bind(source.emplace(source_layout), &TensorTransfer::source, transfers, me));
    return bind(target.emplace(target_layout), &TensorTransfer::target, transfers, me);
  }
};

PreparedTransfers::PreparedTransfers(std::unique_ptr<State> state) : state_(std::move(state)) {}
PreparedTransfers::PreparedTransfers(PreparedTransfers&&) noexcept = default;
PreparedTransfers& PreparedTransfers::operator=(PreparedTransfers&&) noexcept = default;
PreparedTransfers::~PreparedTransfers() = default;

Result<PreparedTransfers> PreparedTransfers::prepare(std::span<const TensorTransfer> transfers,
                                                     Transport& transport, ControlPlane& control,
                                                     const SessionOptions& options) {
  auto state = std::make_unique<State>();
  const Rank me = control.rank();
  const auto begun = state->begin(transfers, me);
  const auto deadline = Deadline::after(std::chrono::duration<double>(options.refit.seconds));
  const std::string trouble =
      RESHARD_TRY(agree_on_reason(begun ? "" : begun.error().message, control, deadline));
  if (!trouble.empty()) return fail(Code::invalid_argument, "xferdtensor: " + trouble);
  const auto held = [me](const std::shared_ptr<const ModelLayout>& layout, RankBuffers& buffers) {
    return SessionSide{.layout = layout,
                       .buffers = layout->ranks().contains(me) ? &buffers : nullptr};
  };
  state->session =
      RESHARD_TRY(Session::prepare(transport, control, held(state->source_layout, *state->source),
                                   held(state->target_layout, *state->target), options));
  return PreparedTransfers(std::move(state));
}

Result<SessionReport> PreparedTransfers::run() { return state_->session->refit(++state_->version); }

Result<SessionReport> xferdtensors(std::span<const TensorTransfer> transfers, Transport& transport,
                                   ControlPlane& control, const SessionOptions& options) {
  auto prepared = RESHARD_TRY(PreparedTransfers::prepare(transfers, transport, control, options));
  return prepared.run();
}

Result<SessionReport> xferdtensor(const TensorTransfer& transfer, Transport& transport,
                                  ControlPlane& control, const SessionOptions& options) {
  return xferdtensors(std::span(&transfer, 1), transport, control, options);
}

}  // namespace reshard::dtensor
