// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/reported/gathered.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "reshard/model/reported/gathered_side.h"

namespace reshard {
namespace {

constexpr std::string_view kHead = "output_layer.weight";
constexpr std::string_view kEmbedding = "embedding.word_embeddings.weight";

tl::unexpected<Error> bad(const std::string& name, const std::string& what) {
  return fail(Code::invalid_argument, fmt::format("parameter '{}': {}", name, what));
}

/// The name of the embedding that a tied output layer copies; empty for other names.
std::string embedding_of(const std::string& name) {
  if (!name.ends_with(kHead)) return {};
  const std::size_t prefix = name.size() - kHead.size();
  if (prefix > 0 && name[prefix - 1] != '.') return {};
  return name.substr(0, prefix) + std::string(kEmbedding);
}

/// The positions in expert groups at which the source has the tensor.
std::string expert_positions(const reported::GatheredSide& source,
                             const reported::GatheredSide::Tensor& wanted) {
  const std::string base = wanted.name.substr(0, wanted.name.rfind("@expert_rank"));
  std::string text;
  for (const auto& t : source.tensors())
    if (t.expert_group_size > 0 && t.name.starts_with(base + "@"))
      text += fmt::format("{}{} of {}", text.empty() ? "" : ", ", t.expert_position,
                          t.expert_group_size);
  return text.empty() ? "none" : text;
}

/// The source tensor of a target tensor.
Result<int> source_of(const reported::GatheredSide& source,
                      const reported::GatheredSide::Tensor& wanted) {
  if (const int same = source.find(wanted.name); same >= 0) return same;
  if (const std::string embedding = embedding_of(wanted.name); !embedding.empty())
    if (const int tied = source.find(embedding); tied >= 0) return tied;
  if (wanted.expert_group_size > 0)
    return fail(
        Code::not_found,
        fmt::format("parameter '{}' on rank {}: the source has no rank at the same position "
                    "of an expert parallel group of {}; it has {}",
                    wanted.name, wanted.first.value(), wanted.expert_group_size,
                    expert_positions(source, wanted)));
  return fail(Code::not_found, fmt::format("parameter '{}' on rank {} of the target has no source",
                                           wanted.name, wanted.first.value()));
}

Result<> check_sizes(const reported::GatheredSide::Tensor& from,
                     const reported::GatheredSide::Tensor& to) {
  if (!(from.shape == to.shape))
    return bad(to.name, fmt::format("its total shape is {} on the source but {} on the target",
                                    to_string(from.shape), to_string(to.shape)));
  const bool packed = from.blocks.size() > 1 && to.blocks.size() > 1;
  if (packed && from.blocks.size() == to.blocks.size() && from.blocks != to.blocks)
    return bad(to.name, "the totals of partition_sizes differ between source and target");
  return {};
}

Result<std::shared_ptr<const ModelLayout>> layout_of(const reported::GatheredSide& side,
                                                     std::string name,
                                                     const std::vector<TensorId>& ids,
                                                     std::shared_ptr<const ModelSpec> model) {
  LayoutBuilder builder(std::move(name), model);
  ExplicitSlots slots(builder);
  side.add_slots(ids, *model, slots);
  slots.finish();
  return std::make_shared<const ModelLayout>(RESHARD_TRY(std::move(builder).finish()));
}

}  // namespace

Result<GatheredPair> gathered_layouts(const GatheredMetadata& source,
                                      const GatheredMetadata& target) {
  reported::GatheredSide from(source, "source"), to(target, "target");
  RESHARD_TRY(from.read());
  RESHARD_TRY(to.read());
  GatheredPair pair;
  auto model = std::make_shared<ModelSpec>();
  std::vector<TensorId> source_ids, target_ids;
  for (const auto& t : from.tensors())
    source_ids.push_back(RESHARD_TRY(model->add(t.name, t.shape, t.dtype)));
  for (const auto& t : to.tensors()) {
    const auto i = static_cast<std::size_t>(RESHARD_TRY(source_of(from, t)));
    RESHARD_TRY(check_sizes(from.tensors()[i], t));
    target_ids.push_back(source_ids[i]);
  }
  for (const auto& t : from.tensors()) {
    const std::string embedding = embedding_of(t.name);
    if (!embedding.empty() && from.find(embedding) >= 0 && to.find(t.name) < 0)
      pair.ignore.insert(t.name);
  }
  pair.model = model;
  pair.source = RESHARD_TRY(layout_of(from, "gathered source", source_ids, model));
  pair.target = RESHARD_TRY(layout_of(to, "gathered target", target_ids, model));
  return pair;
}

}  // namespace reshard
