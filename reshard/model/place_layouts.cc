// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/place_layouts.h"

#include <fmt/format.h>

#include "reshard/model/layout_builder.h"

namespace reshard {
namespace {

using LayoutParts = std::span<const std::shared_ptr<const ModelLayout>>;

Result<> check_ranks(LayoutParts parts) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    for (std::size_t k = 0; k < i; ++k) {
      const RankSet both = parts[i]->ranks() & parts[k]->ranks();
      if (both.empty()) continue;
      return fail(Code::invalid_argument,
                  fmt::format("{} and {} both have rank {}; give one of them another offset",
                              parts[k]->name(), parts[i]->name(), both.nth(0).value()));
    }
  }
  return {};
}

/// Every tensor that one part holds must be held or omitted by each. Omits what all parts omit.
Result<> join_tensors(LayoutParts parts, LayoutBuilder& out) {
  for (Index i = 0; i < out.model().size(); ++i) {
    const TensorId id(static_cast<TensorId::rep>(i));
    const ModelLayout *holds = nullptr, *lacks = nullptr;
    bool omitted = true;
    for (const auto& part : parts) {
      const bool held = !part->parts_of(id).empty();
      if (held) holds = part.get();
      if (!held && !part->omits(id)) lacks = part.get();
      omitted &= !held && part->omits(id);
    }
    if (holds != nullptr && lacks != nullptr)
      return fail(Code::invalid_argument,
                  fmt::format("tensor '{}' is in {} but not in {}, so one plan cannot serve both",
                              out.model()[id].name, holds->name(), lacks->name()));
    if (omitted) out.omit(id);
  }
  return {};
}

}  // namespace

Result<ModelLayout> move_layout(const ModelLayout& layout, Rank first) {
  constexpr Index kMaxRanks = Index{1} << 20;
  const std::vector<Rank> ranks = layout.ranks().members();
  if (ranks.empty() || first.value() < 0 ||
      Index{first.value()} + ranks.back().value() - ranks.front().value() >= kMaxRanks)
    return fail(Code::invalid_argument,
                fmt::format("{} cannot begin at rank {}", layout.name(), first.value()));
  LayoutBuilder out(layout.name(), layout.shared_model());
  out.add_all(layout, first.value() - ranks.front().value());
  for (Index i = 0; i < layout.model().size(); ++i)
    if (const TensorId id(static_cast<TensorId::rep>(i)); layout.omits(id)) out.omit(id);
  return std::move(out).finish();
}

Result<QuantisedLayout> move_layout(const QuantisedLayout& layout, Rank first) {
  QuantisedLayout out = layout;
  for (std::shared_ptr<const ModelLayout>* each : {&out.values, &out.stored})
    *each = std::make_shared<const ModelLayout>(RESHARD_TRY(move_layout(**each, first)));
  return out;
}

Result<ModelLayout> join_layouts(LayoutParts parts) {
  if (parts.empty()) return fail(Code::invalid_argument, "there is no layout to join");
  std::string name;
  for (const auto& part : parts) {
    name += (name.empty() ? "" : " + ") + part->name();
    if (part->model().digest() != parts[0]->model().digest())
      return fail(Code::invalid_argument, fmt::format("{} and {} are layouts of different models",
                                                      parts[0]->name(), part->name()));
  }
  RESHARD_TRY(check_ranks(parts));
  LayoutBuilder out(std::move(name), parts[0]->shared_model());
  for (const auto& part : parts) out.add_all(*part);
  RESHARD_TRY(join_tensors(parts, out));
  return std::move(out).finish();
}

}  // namespace reshard
