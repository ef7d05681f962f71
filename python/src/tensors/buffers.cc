// SPDX-License-Identifier: Apache-2.0
#include "python/src/tensors/buffers.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "reshard/io/files/mapped_file.h"

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

bool is_mapping(nb::handle object) {
  return PyMapping_Check(object.ptr()) != 0 && PyType_Check(object.ptr()) == 0 &&
         nb::hasattr(object, "keys");
}

/// A module of torch, or what looks like one: calling it would run it.
bool is_module(nb::handle object) {
  return nb::hasattr(object, "state_dict") && nb::hasattr(object, "named_parameters");
}

/// The mapping that is given for a rank, once called if it is a callable. Errors: not a mapping.
nb::object mapping_of(const TensorBuffers::RankTensors& tensors, const char* side) {
  nb::object mapping = tensors.given;
  const auto refuse = [&](const std::string& why) {
    throw nb::type_error(fmt::format("rank {}: {}tensors must be a mapping from names to tensors, "
                                     "or a callable that returns one, not {}",
                                     tensors.rank.value(), side, why)
                             .c_str());
  };
  if (is_mapping(mapping)) return mapping;
  const std::string type = nb::type_name(mapping.type()).c_str();
  if (is_module(mapping))
    refuse(fmt::format("a module ({}), which is never called; give its state_dict()", type));
  if (PyCallable_Check(mapping.ptr()) == 0 || PyType_Check(mapping.ptr()) != 0) refuse(type);
  mapping = mapping();
  if (!is_mapping(mapping)) refuse(nb::type_name(mapping.type()).c_str());
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
  TypeFacts types;
  for (const RankTensors& rank : given_) bind_rank(rank, side, looks(stream_, types));
  Look all;
  for (const Binding& binding : tensors_)
    if (const auto& producer = binding.tensor.view().producer) all.producers_.insert(*producer);
  all.device_ = device_of({}, side);
  all.stream_ = stream_;
  all.handle_ = handle_of(stream_, all.device_);
  memory_ = bound({});
  take(std::move(all));
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
  std::size_t count = 0;
  for (const nb::handle key : nb::borrow<nb::iterable>(mapping)) {
    if (!nb::isinstance<nb::str>(key))
      throw nb::type_error(fmt::format("rank {}: {}tensors: the keys must be names (str), not {}",
                                       rank.value(), side, nb::type_name(key.type()).c_str())
                               .c_str());
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
    check(tensors_.back(), tensors_.back().tensor.view(), side);
    ++count;
  }
  if (count < slots.size()) raise_missing(layout, rank, side, slots, mapping);
}

void TensorBuffers::check(const Binding& binding, const TensorView& view, const char* side) const {
  check_tensor(view, wanted_tensor(layout_->stored(), binding.slot, binding.rank),
               text_of(side, binding.rank, binding.slot), layout_->stored().name(),
               Memory::host_or_gpu);
}

/// @pre check()
void TensorBuffers::bind(RankBuffers& memory, const Binding& binding,
                         const TensorView& view) const {
  const Index bytes = memory.bytes(binding.rank, binding.slot);
  const std::span<std::byte> all(view.data, static_cast<std::size_t>(bytes));
  unwrap(view.read_only ? memory.bind_read_only(binding.rank, binding.slot, all)
                        : memory.bind(binding.rank, binding.slot, all));
}

/// All tensors, of which some are as `moved` says.
RankBuffers TensorBuffers::bound(const std::vector<Look::Moved>& moved) const {
  RankBuffers out(layout_->side.stored());
  auto next = moved.begin();
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const bool has_moved = next != moved.end() && next->binding == i;
    bind(out, tensors_[i], has_moved ? next++->tensor.view() : tensors_[i].tensor.view());
  }
  return out;
}

nb::object TensorBuffers::given(const Binding& binding, nb::handle mapping,
                                const char* side) const {
  PyObject* found = PyObject_GetItem(mapping.ptr(), binding.key.ptr());
  if (found != nullptr) return nb::steal(found);
  clear_ordinary();
  raise(Code::invalid_argument, text_of(side, binding.rank, binding.slot).text() +
                                    ": is no longer in the mapping that was given");
}

TensorBuffers::Look TensorBuffers::look(const char* side, const nb::object& stream) const {
  TypeFacts types;
  Look out;
  out.memory_ = &memory_;
  out.stream_ = stream.is_valid() && !stream.is_none() ? stream : stream_;
  const LookOptions options = looks(out.stream_, types);
  nb::object mapping;
  Rank rank(-1);
  auto next = given_.begin();
  // By index, and with the objects held: what is called here may use this object.
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const Binding& binding = tensors_[i];
    if (binding.rank != rank) {
      rank = binding.rank;
      while (next->rank != rank) ++next;
      mapping = mapping_of(*next, side);
    }
    const TensorName name = text_of(side, rank, binding.slot);
    const nb::object now = given(binding, mapping, side);
    if (now.is(binding.tensor.object())) {
      const TensorView view = PinnedTensor::look(now, name, options);
      if (view.producer) out.producers_.insert(*view.producer);
      if (view.same_as(binding.tensor.view())) continue;
    }
    PinnedTensor found(now, name, options);
    if (found.view().producer) out.producers_.insert(*found.view().producer);
    check(binding, found.view(), side);
    out.tensors_.push_back({i, std::move(found)});
  }
  const bool moved = !out.tensors_.empty();
  out.device_ = moved ? device_of(out.tensors_, side) : device();
  out.handle_ = handle_of(out.stream_, out.device_);
  if (moved) out.moved_ = bound(out.tensors_);
  return out;
}

void TensorBuffers::take(Look look) {
  for (Look::Moved& moved : look.tensors_) {
    bind(memory_, tensors_[moved.binding], moved.tensor.view());
    tensors_[moved.binding].tensor = std::move(moved.tensor);
  }
  // Sessions of other ranks may read it now, in other threads.
  if (look.device_ != device() || look.handle_ != memory_.stream())
    memory_.set_device(look.device_, look.handle_);
  used_stream_ = std::move(look.stream_);
  for (const std::uint64_t producer : look.producers_)
    if (device() != nullptr) order_.order(device(), stream_of_number(producer), look.handle_);
}

Index TensorBuffers::bytes() const {
  Index total = 0;
  for (const Rank rank : memory_.ranks())
    for (const SlotId slot : layout_->stored().slots_of(rank))
      if (memory_.at(rank, slot) != nullptr) total += memory_.bytes(rank, slot);
  return total;
}

void expect_usable(MemoryCheck& check, const MemoryCheck::Sides& sides) {
  std::string trouble = check.trouble(sides);
  if (!trouble.empty()) raise(Code::invalid_argument, std::move(trouble));
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
  if (layout == nullptr)
    throw nb::type_error(fmt::format("{}tensors need a {}layout", side, side).c_str());
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
