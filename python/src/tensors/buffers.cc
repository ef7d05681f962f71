// SPDX-License-Identifier: Apache-2.0
#include "python/src/tensors/buffers.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "python/src/tensors/exported.h"

namespace reshard::python {
namespace {

using SlotsByName = std::unordered_map<std::string_view, SlotId>;

SlotsByName slots_by_name(const ModelLayout& layout, Rank rank) {
  SlotsByName slots;
  for (const SlotId slot : layout.slots_of(rank))
    if (!slots.emplace(layout.slot(slot).name, slot).second)
      raise(Code::unsupported, fmt::format("rank {} has two local tensors '{}' in {}", rank.value(),
                                           layout.slot(slot).name, layout.name()));
  return slots;
}

/// What is given for a rank, once called if it is a callable. Errors: not a mapping.
nb::object mapping_of(const TensorBuffers::RankTensors& tensors, const char* side) {
  nb::object mapping = tensors.given;
  if (PyCallable_Check(mapping.ptr()) != 0) mapping = mapping();
  if (PyMapping_Check(mapping.ptr()) == 0 || !nb::hasattr(mapping, "keys"))
    throw nb::type_error(fmt::format("rank {}: {}tensors must be a mapping from names to tensors, "
                                     "or a callable that returns one",
                                     tensors.rank.value(), side)
                             .c_str());
  return mapping;
}

/// The error for names that a layout has and a mapping lacks.
[[noreturn]] void raise_missing(const ModelLayout& layout, Rank rank, const char* side,
                                const SlotsByName& slots, nb::handle mapping) {
  std::vector<std::string_view> missing;
  for (const auto& [name, slot] : slots)
    if (PyMapping_HasKeyString(mapping.ptr(), std::string(name).c_str()) == 0)
      missing.push_back(name);
  std::ranges::sort(missing);
  raise(Code::not_found,
        fmt::format("rank {}: no {}tensor '{}'{}, which {} has there", rank.value(), side,
                    missing.empty() ? "" : missing.front(),
                    missing.size() > 1 ? fmt::format(" and {} more", missing.size() - 1) : "",
                    layout.name()));
}

}  // namespace

WantedTensor wanted_tensor(const ModelLayout& layout, SlotId slot, Rank rank) {
  const Dims shape = layout.local_shape(slot, rank);
  return {layout.slot(slot).dtype, shape, merged_shape(shape, layout.slot(slot).merged)};
}

void TensorBuffers::check_ranks(const Layout& layout, const RankSet& ranks) {
  for (const Rank rank : ranks.members())
    if (!layout.stored().ranks().contains(rank))
      raise(Code::invalid_argument,
            fmt::format("rank {} is not one of {}'s", rank.value(), layout.stored().name()));
}

TensorBuffers::TensorBuffers(std::shared_ptr<const Layout> layout, RankBuffers memory)
    : layout_(std::move(layout)), memory_(std::move(memory)) {}

TensorBuffers::TensorBuffers(std::shared_ptr<const Layout> layout, std::vector<RankTensors> tensors,
                             const char* side, nb::object stream)
    : layout_(std::move(layout)),
      memory_(layout_->side.stored()),
      given_(std::move(tensors)),
      stream_(std::move(stream)) {
  for (const RankTensors& rank : given_) bind_rank(rank, side, looks(stream_));
  locate(side);
  use_stream(stream_);
}

std::unique_ptr<TensorBuffers> TensorBuffers::allocate(std::shared_ptr<const Layout> layout,
                                                       const RankSet& ranks,
                                                       HostBuffer::Options options) {
  check_ranks(*layout, ranks);
  auto memory = without_gil([&] {
    return unwrap(RankBuffers::allocate(layout->side.stored(), ranks.members(), options));
  });
  return std::unique_ptr<TensorBuffers>(new TensorBuffers(std::move(layout), std::move(memory)));
}

void TensorBuffers::bind_rank(const RankTensors& tensors, const char* side,
                              const LookOptions& options) {
  const ModelLayout& layout = layout_->stored();
  const Rank rank = tensors.rank;
  const nb::object mapping = mapping_of(tensors, side);
  const bool has_rank = layout.ranks().contains(rank);
  const SlotsByName slots = has_rank ? slots_by_name(layout, rank) : SlotsByName();
  std::size_t bound = 0;
  for (const nb::handle key : nb::borrow<nb::iterable>(mapping)) {
    const auto name = nb::cast<std::string_view>(key);
    const auto slot = slots.find(name);
    if (slot == slots.end())
      raise(Code::invalid_argument,
            has_rank
                ? fmt::format("rank {}: {} has no local tensor '{}' there (it has {}{})",
                              rank.value(), layout.name(), name, slots.size(),
                              slots.empty()
                                  ? ""
                                  : fmt::format(", such as '{}'",
                                                layout.slot(layout.slots_of(rank).front()).name))
                : fmt::format("rank {} is not one of {}'s, but {}tensors are given for it",
                              rank.value(), layout.name(), side));
    const nb::object tensor = mapping[key];
    tensors_.push_back({rank, slot->second, nb::borrow(key),
                        PinnedTensor(tensor, text_of(side, rank, slot->second), options)});
    bind(rank, slot->second, tensors_.back().tensor.view(), side);
    ++bound;
  }
  if (bound < slots.size()) raise_missing(layout, rank, side, slots, mapping);
}

void TensorBuffers::bind(Rank rank, SlotId slot, const TensorView& view, const char* side) {
  const WantedTensor wanted = wanted_tensor(layout_->stored(), slot, rank);
  check_tensor(view, wanted, text_of(side, rank, slot), layout_->stored().name(),
               Memory::host_or_gpu);
  if (view.producer) producers_.insert(*view.producer);
  unwrap(memory_.bind(rank, slot, {view.data, static_cast<std::size_t>(wanted.bytes())}));
}

nb::object TensorBuffers::given(const Binding& binding, nb::handle mapping,
                                const char* side) const {
  PyObject* found = PyObject_GetItem(mapping.ptr(), binding.key.ptr());
  if (found != nullptr) return nb::steal(found);
  PyErr_Clear();
  raise(Code::invalid_argument, text_of(side, binding.rank, binding.slot).text() +
                                    ": is no longer in the mapping that was given");
}

bool TensorBuffers::refresh(const char* side, const nb::object& stream) {
  const nb::object& used = stream.is_valid() && !stream.is_none() ? stream : stream_;
  const LookOptions options = looks(used);
  producers_.clear();
  bool moved = false;
  nb::object mapping;
  Rank rank(-1);
  auto next = given_.begin();
  for (Binding& binding : tensors_) {
    if (binding.rank != rank) {
      rank = binding.rank;
      while (next->rank != rank) ++next;
      mapping = mapping_of(*next, side);
    }
    const TensorName name = text_of(side, rank, binding.slot);
    const nb::object now = given(binding, mapping, side);
    const bool is_same = now.is(binding.tensor.object());
    if (is_same) {
      const TensorView view = binding.tensor.look(name, options);
      if (view.producer) producers_.insert(*view.producer);
      if (view.same_as(binding.tensor.view())) continue;
    }
    PinnedTensor found(now, name, options);
    bind(rank, binding.slot, found.view(), side);
    binding.tensor = std::move(found);
    moved = true;
  }
  if (moved) locate(side);
  use_stream(used);
  return moved;
}

std::vector<TensorBuffers::Range> TensorBuffers::ranges() const {
  std::vector<Range> out;
  for (const Rank rank : memory_.ranks())
    for (const SlotId slot : layout_->stored().slots_of(rank))
      if (const std::byte* data = memory_.at(rank, slot); data != nullptr) {
        const auto begin = reinterpret_cast<std::uintptr_t>(data);
        out.push_back(
            {begin, begin + static_cast<std::uintptr_t>(memory_.bytes(rank, slot)), rank, slot});
      }
  std::ranges::sort(out, {}, &Range::begin);
  return out;
}

Index TensorBuffers::bytes() const {
  Index total = 0;
  for (const Range& range : ranges()) total += static_cast<Index>(range.end - range.begin);
  return total;
}

void TensorBuffers::check_writable(const char* side) const {
  for (const Binding& binding : tensors_)
    if (binding.tensor.view().read_only)
      raise(Code::invalid_argument, fmt::format("{}: is read-only, but a refit writes it",
                                                text_of(side, binding.rank, binding.slot).text()));
  const std::vector<Range> sorted = ranges();
  for (std::size_t i = 1; i < sorted.size(); ++i)
    if (sorted[i].begin < sorted[i - 1].end)
      raise(Code::invalid_argument,
            fmt::format("{}: shares memory with '{}' of rank {}; each needs its own",
                        text_of(side, sorted[i].rank, sorted[i].slot).text(),
                        name_of(sorted[i - 1].slot), sorted[i - 1].rank.value()));
}

void TensorBuffers::check_apart(const char* side, const TensorBuffers& other,
                                const char* other_side) const {
  const std::vector<Range> mine = ranges(), theirs = other.ranges();
  auto at = mine.begin();
  for (const Range& range : theirs) {
    while (at != mine.end() && at->end <= range.begin) ++at;
    if (at == mine.end()) return;
    if (at->begin < range.end)
      raise(Code::invalid_argument,
            fmt::format("{}: shares memory with {}tensor '{}'; each needs its own",
                        text_of(side, at->rank, at->slot).text(), other_side,
                        other.name_of(range.slot)));
  }
}

SlotId TensorBuffers::slot_of(Rank rank, const std::string& name) const {
  const ModelLayout& layout = layout_->stored();
  for (const SlotId slot :
       layout.ranks().contains(rank) ? layout.slots_of(rank) : std::vector<SlotId>())
    if (layout.slot(slot).name == name) return slot;
  raise(Code::not_found,
        fmt::format("rank {} has no local tensor '{}' in {}", rank.value(), name, layout.name()));
}

nb::object TensorBuffers::exported(nb::handle self, Rank rank, SlotId slot) const {
  const WantedTensor wanted = wanted_tensor(layout_->stored(), slot, rank);
  return nb::cast(std::make_unique<ExportedTensor>(nb::borrow(self), memory_.at(rank, slot),
                                                   wanted.dtype, wanted.stored,
                                                   device() == nullptr ? -1 : device()->ordinal()));
}

nb::object TensorBuffers::tensor(nb::handle self, Rank rank, const std::string& name) const {
  const SlotId slot = slot_of(rank, name);
  for (const Binding& binding : tensors_)
    if (binding.rank == rank && binding.slot == slot) return binding.tensor.object();
  if (memory_.at(rank, slot) == nullptr && memory_.bytes(rank, slot) > 0)
    raise(Code::not_found, fmt::format("rank {} has no memory here", rank.value()));
  return exported(self, rank, slot);
}

nb::dict TensorBuffers::tensors_of(nb::handle self, Rank rank) const {
  nb::dict out;
  for (const Binding& binding : tensors_)
    if (binding.rank == rank) out[binding.key] = binding.tensor.object();
  if (!owns_memory()) return out;
  const auto here = memory_.ranks();
  if (std::ranges::find(here, rank) == here.end())
    raise(Code::not_found, fmt::format("rank {} has no memory here", rank.value()));
  for (const SlotId slot : layout_->stored().slots_of(rank))
    out[nb::cast(layout_->stored().slot(slot).name)] = exported(self, rank, slot);
  return out;
}

int TensorBuffers::traverse(visitproc visit, void* arg) const {
  for (const RankTensors& tensors : given_) Py_VISIT(tensors.given.ptr());
  for (const Binding& binding : tensors_) {
    Py_VISIT(binding.key.ptr());
    if (const int stop = binding.tensor.traverse(visit, arg); stop != 0) return stop;
  }
  Py_VISIT(stream_.ptr());
  Py_VISIT(used_stream_.ptr());
  return 0;
}

void TensorBuffers::clear() {
  const auto given = std::exchange(given_, {});
  const auto tensors = std::exchange(tensors_, {});
  const auto streams =
      std::pair(std::exchange(stream_, nb::none()), std::exchange(used_stream_, nb::none()));
}

nb::object buffers_of(const nb::object& tensors, const std::shared_ptr<const Layout>& layout,
                      Rank me, const char* side, const nb::object& stream) {
  if (!tensors.is_valid() || tensors.is_none()) return {};
  if (!nb::isinstance<TensorBuffers>(tensors))
    return nb::cast(std::make_unique<TensorBuffers>(
        layout, std::vector<TensorBuffers::RankTensors>{{me, tensors}}, side, stream));
  const auto& given = nb::cast<const TensorBuffers&>(tensors);
  if (given.layout()->stored().digest() != layout->stored().digest())
    raise(Code::invalid_argument,
          fmt::format("the {}buffers are of {}, the {}layout is {}", side,
                      given.layout()->stored().name(), side, layout->stored().name()));
  return tensors;
}

}  // namespace reshard::python
