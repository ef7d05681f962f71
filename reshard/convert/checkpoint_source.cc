// SPDX-License-Identifier: Apache-2.0
#include "reshard/convert/checkpoint_source.h"

#include <fmt/format.h>

#include <cstring>
#include <iterator>

#include "reshard/base/check.h"
#include "reshard/io/layout_side.h"
#include "reshard/model/name_pattern.h"
#include "reshard/model/naming/misfits.h"
#include "reshard/transform/convert.h"
#include "reshard/transform/quantise_arithmetic.h"

namespace reshard {
namespace {

/// Widens scales to F32. Bytes are exponents: 2^(byte - 127).
void widen(DType from, std::span<const std::byte> scales, std::byte* to) {
  if (is_convertible(from)) {
    const Conversion conversion{{from, ValueMap::identity}, {DType::f32, ValueMap::identity}};
    const auto count = static_cast<Index>(scales.size()) * 8 / bits(from);
    return convert_values(conversion, scales.data(), to, count);
  }
  for (const std::byte scale : scales) {
    const float value = e8m0_to_float(std::to_integer<std::uint32_t>(scale));
    std::memcpy(to, &value, sizeof value);
    to += sizeof value;
  }
}

std::string described(DType dtype, const Dims& shape) {
  return fmt::format("{} {}", name(dtype), to_string(shape));
}

}  // namespace

Result<CheckpointSource> CheckpointSource::bind(const Model& model, const LayoutSide& own) {
  return bind(model, own.stored(), RESHARD_TRY(SlotFiles::of(own)));
}

const std::vector<CheckpointTensor>& CheckpointSource::stored(Rank r) const {
  return checkpoint_->kind() == Checkpoint::Kind::hf ? checkpoint_->tensors()
                                                     : checkpoint_->tensors(r);
}

Result<CheckpointSource> CheckpointSource::bind(const Model& model,
                                                const std::shared_ptr<const ModelLayout>& own) {
  const LayoutSide side = RESHARD_TRY(own_side(model, holds_codes(model, *own)));
  RESHARD_CHECK(side.stored()->digest() == own->digest());
  SlotFiles files = RESHARD_TRY(SlotFiles::of(side));
  files.borrow(*own);
  return bind(model, own, std::move(files));
}

Result<CheckpointSource> CheckpointSource::bind(const Model& model,
                                                std::shared_ptr<const ModelLayout> own,
                                                SlotFiles files) {
  const Checkpoint& checkpoint = *model.weights;
  const Index ranks = own->ranks().size();
  if (ranks != checkpoint.world_size() || own->ranks() != RankSet::range(0, ranks))
    return fail(Code::corrupt,
                fmt::format("{}: layout '{}' has ranks {}, but the checkpoint lists {}", model.name,
                            own->name(), to_string(own->ranks()), checkpoint.world_size()));
  ComputedWeights computed = RESHARD_TRY(ComputedWeights::compute(model, *own));
  CheckpointSource source(model, std::move(computed), std::move(files),
                          RankBuffers(std::move(own)));
  for (std::size_t i = 0; i < checkpoint.num_files(); ++i)
    source.mapped_.emplace(checkpoint.mapping(i).bytes().data(), &checkpoint.mapping(i));
  for (Rank r : source.buffers_.layout().ranks().members()) RESHARD_TRY(source.bind_rank(r));
  return source;
}

Result<> CheckpointSource::bind_rank(Rank r) {
  const ModelLayout& layout = buffers_.layout();
  const auto& tensors = stored(r);
  const auto slots = layout.slots_of(r);
  const auto file = [&](const CheckpointTensor& t) { return checkpoint_->mapping(t.file).path(); };
  for (SlotId slot : slots) {
    const FileTensor want = files_.file_tensor(slot, r);
    if (const auto values = computed_.values_of(want.name); !values.empty()) {
      RESHARD_TRY(buffers_.bind_read_only(r, slot, values));
      continue;
    }
    const auto* tensor = find_tensor(tensors, want.name);
    if (tensor == nullptr)
      return fail(Code::corrupt,
                  fmt::format("{}: rank {} has no tensor '{}', which layout '{}' gives it{}",
                              checkpoint_->folder(), r.value(), want.name, layout.name(),
                              instead_of(want.name, misfits(r))));
    compare_shape(r, *tensor, layout.stored_shape(slot, r), want.shape);
    if (files_.is_part(slot) && want.dtype == DType::f32 && tensor->dtype != want.dtype &&
        reads_as(tensor->dtype, want.dtype, files_.format_of(slot)) &&
        same_shape(tensor->shape, want.shape)) {
      RESHARD_TRY(bind_as_float(r, slot, *tensor));
      continue;
    }
    const bool as_slot = tensor->dtype == layout.slot(slot).dtype &&
                         same_shape(tensor->shape, layout.stored_shape(slot, r));
    const bool as_in_file = tensor->dtype == want.dtype && same_shape(tensor->shape, want.shape);
    if (!as_slot && !as_in_file)
      return fail(Code::corrupt,
                  fmt::format("{}: tensor '{}' is {}; by layout '{}' rank {} has {}", file(*tensor),
                              want.name, described(tensor->dtype, tensor->shape), layout.name(),
                              r.value(), described(want.dtype, want.shape)));
    RESHARD_TRY(buffers_.bind_read_only(r, slot, checkpoint_->data(*tensor)));
  }
  // Other checkpoints may have a tied head, which was compared and left out; files of ranks have
  // exactly the tensors of their layout.
  if (checkpoint_->kind() != Checkpoint::Kind::ranks || tensors.size() == slots.size()) return {};
  for (const std::string_view name : misfits(r))
    if (std::none_of(ignore_.begin(), ignore_.end(), [&](const std::string& pattern) {
          return match_pattern(pattern, name).has_value();
        }))
      return fail(Code::corrupt,
                  fmt::format("{}: tensor '{}' is not part of layout '{}' on rank {}",
                              file(*find_tensor(tensors, name)), name, layout.name(), r.value()));
  return {};
}

std::vector<std::string_view> CheckpointSource::misfits(Rank r) const {
  std::set<std::string> wanted;
  for (const SlotId slot : buffers_.layout().slots_of(r))
    wanted.insert(files_.file_tensor(slot, r).name);
  std::vector<std::string_view> names;
  for (const CheckpointTensor& tensor : stored(r))
    if (!wanted.contains(tensor.name)) names.push_back(tensor.name);
  return names;
}

void CheckpointSource::compare_shape(Rank r, const CheckpointTensor& tensor, const Dims& as_slot,
                                     const Dims& in_file) {
  if (checkpoint_->kind() != Checkpoint::Kind::ranks) return;
  if (tensor.shape == as_slot || tensor.shape == in_file) return;
  other_shapes_.push_back(fmt::format("rank {}: tensor '{}' is {}; by layout '{}' it is {}",
                                      r.value(), tensor.name, to_string(tensor.shape),
                                      buffers_.layout().name(), to_string(in_file)));
}

Result<> CheckpointSource::bind_as_float(Rank r, SlotId slot, const CheckpointTensor& tensor) {
  constexpr Index kFloat = 4;
  const Index count = volume(tensor.shape);
  auto memory = std::make_unique<std::byte[]>(static_cast<std::size_t>(count * kFloat));
  const std::span<const std::byte> bytes = checkpoint_->data(tensor);
  widen(tensor.dtype, bytes, memory.get());
  checkpoint_->drop(tensor);
  converted_.push_back(std::move(memory));
  return buffers_.bind_read_only(
      r, slot, {converted_.back().get(), static_cast<std::size_t>(count * kFloat)});
}

const MappedFile* CheckpointSource::file_at(const std::byte* memory) const {
  const auto after = mapped_.upper_bound(memory);
  if (after == mapped_.begin()) return nullptr;
  const auto& [begin, file] = *std::prev(after);
  return memory - begin < file->size() ? file : nullptr;
}

void CheckpointSource::prefetch(std::span<const std::byte> memory) const {
  if (const MappedFile* file = file_at(memory.data()))
    file->prefetch(memory.data() - file->bytes().data(), std::ssize(memory));
}

void CheckpointSource::drop(std::span<const std::byte> memory) const {
  if (const MappedFile* file = file_at(memory.data()))
    file->drop(memory.data() - file->bytes().data(), std::ssize(memory));
}

}  // namespace reshard
