// SPDX-License-Identifier: Apache-2.0
// Ranks' tensors in the memory of a GPU: which one, on which stream, and copies in host memory.
#include <fmt/format.h>

#include "python/src/tensors/buffers.h"

namespace reshard::python {
namespace {

/// True if both are the host's, or one GPU's.
bool share_place(const TensorView& a, const TensorView& b) {
  if (a.on_host() || b.on_host()) return a.on_host() && b.on_host();
  return a.device.device_id == b.device.device_id;
}

bool has_bytes(const TensorView& view) { return volume(view.shape) > 0; }

}  // namespace

std::string TensorBuffers::place() const {
  return device() == nullptr ? "cpu" : gpu_text(device()->ordinal());
}

/// The options for an exporter before it is known where its tensor lies.
LookOptions TensorBuffers::looks(const nb::object& stream, TypeFacts& types) const {
  return {stream.is_none() ? std::int64_t{1} : dlpack_stream(stream_handle(stream, -1)), &types};
}

/// Finds where the tensors are, and opens their GPU. A tensor without bytes may be anywhere.
std::shared_ptr<const cuda::Device> TensorBuffers::device_of(const std::vector<Look::Moved>& moved,
                                                             const char* side) const {
  const Binding* first = nullptr;
  const TensorView* first_view = nullptr;
  auto next = moved.begin();
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const Binding& binding = tensors_[i];
    const bool has_moved = next != moved.end() && next->binding == i;
    const TensorView& view = has_moved ? next++->tensor.view() : binding.tensor.view();
    if (!has_bytes(view)) continue;
    if (first == nullptr) {
      first = &binding;
      first_view = &view;
    }
    if (share_place(view, *first_view)) continue;
    raise(
        Code::invalid_argument,
        fmt::format("{}: is on {}, but '{}' of rank {} is on {}; all must be on one GPU, or all on "
                    "the host",
                    text_of(side, binding.rank, binding.slot).text(), view.place(),
                    name_of(first->slot), first->rank.value(), first_view->place()));
  }
  if (first == nullptr || first_view->on_host()) return nullptr;
  try {
    return gpu(first_view->device.device_id);
  } catch (const Raised& raised) {
    throw Raised(Error(raised.error())
                     .in(fmt::format("{}: is on {}", text_of(side, first->rank, first->slot).text(),
                                     first_view->place())));
  }
}

/// The handle of a stream of the GPU; null if there is none.
cuda::StreamHandle TensorBuffers::handle_of(
    const nb::object& stream, const std::shared_ptr<const cuda::Device>& device) const {
  if (device == nullptr) return nullptr;
  if (!stream.is_none()) return stream_handle(stream, device->ordinal());
  if (tensors_.empty()) return nullptr;
  return current_stream(tensors_.front().tensor.object(), device->ordinal());
}

void TensorBuffers::lend(cuda::StreamHandle to) {
  if (device() != nullptr) order_.order(device(), memory_.stream(), to);
}

std::unique_ptr<TensorBuffers> TensorBuffers::allocate(std::shared_ptr<const Layout> layout,
                                                       const RankSet& ranks, int ordinal,
                                                       nb::object stream) {
  check_ranks(*layout, ranks);
  std::unique_ptr<TensorBuffers> out(new TensorBuffers(layout, RankBuffers(layout->side.stored())));
  out->memory_.set_device(gpu(ordinal));
  out->stream_ = std::move(stream);
  out->take(out->look(""));
  const cuda::Stream work = out->stream();
  without_gil([&] {
    for (const Rank rank : ranks.members()) {
      const Index bytes = bytes_of_rank(layout->stored(), rank);
      cuda::Buffer memory = unwrap(cuda::Buffer::on_device(out->device(), bytes));
      if (bytes > 0) unwrap(work.fill(memory.data(), std::byte{0}, bytes));
      unwrap(out->memory_.bind_rank(rank, {memory.data(), static_cast<std::size_t>(bytes)}));
      out->gpu_memory_.push_back(std::move(memory));
    }
    unwrap(work.synchronize());
  });
  return out;
}

RankBuffers TensorBuffers::host_copy() const {
  const std::vector<Rank> ranks = memory_.ranks();
  RankBuffers host = unwrap(RankBuffers::allocate(layout_->side.stored(), ranks));
  const cuda::Stream work = stream();
  for (const Rank rank : ranks)
    for (const SlotId slot : layout_->stored().slots_of(rank))
      if (memory_.bytes(rank, slot) > 0 && memory_.at(rank, slot) != nullptr)
        unwrap(work.copy(host.at(rank, slot), memory_.at(rank, slot), memory_.bytes(rank, slot)));
  unwrap(work.synchronize());
  return host;
}

std::unique_ptr<TensorBuffers> TensorBuffers::on_host() const {
  RankBuffers copy = without_gil([&] { return host_copy(); });
  return std::unique_ptr<TensorBuffers>(new TensorBuffers(layout_, std::move(copy)));
}

void TensorBuffers::copy_from(const RankBuffers& host, Rank rank) {
  const cuda::Stream work = stream();
  for (const SlotId slot : layout_->stored().slots_of(rank))
    if (memory_.bytes(rank, slot) > 0 && memory_.at(rank, slot) != nullptr)
      unwrap(work.copy(memory_.at(rank, slot), host.at(rank, slot), memory_.bytes(rank, slot)));
  unwrap(work.synchronize());
}

}  // namespace reshard::python
