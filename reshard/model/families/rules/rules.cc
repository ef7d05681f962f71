// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/families/rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <utility>

#include "reshard/model/families.h"
#include "reshard/model/families/local_names.h"
#include "reshard/model/families/megatron/card_keys.h"
#include "reshard/model/families/rules/rule_index.h"
#include "reshard/model/families/rules/rule_places.h"
#include "reshard/model/families/rules/rule_sections.h"
#include "reshard/model/layout_builder.h"
#include "reshard/model/quant/files.h"

namespace reshard::families {
namespace {

/// The local tensor that a rule makes of the tensors with the same wildcards.
struct Instance {
  const Rule* rule = nullptr;
  std::size_t number = 0;           ///< of the rule.
  std::vector<std::string> groups;  ///< what the wildcards matched.
  /// The tensors of each part, by the number of the wildcard `each`.
  std::vector<std::map<Index, TensorId>> parts;
};

class Rules {
 public:
  Rules(const LayoutSpec& spec, const FamilyInput& input, const RuleSet& rules)
      : spec_(spec),
        rules_(rules),
        values_(input.values),
        m_(*input.model),
        b_(to_string(spec), input.model) {}

  Result<ModelLayout> build() {
    auto made = build_all();
    if (made || made.error().message.starts_with(spec_.family + ":")) return made;
    return tl::unexpected(std::move(made).error().in(spec_.family));
  }

 private:
  Result<ModelLayout> build_all() {
    RESHARD_TRY(make_meshes());
    RESHARD_TRY(choose_rules());
    RESHARD_TRY(collect());
    for (const Instance& instance : instances_)
      if (auto added = add(instance); !added)
        return tl::unexpected(std::move(added).error().in(described(instance)));
    return std::move(b_).finish();
  }

  Result<> make_meshes() {
    RESHARD_TRY(read_keys());
    for (const RuleSet::Requirement& required : rules_.require)
      if (RESHARD_TRY(required.that.value(lookup_)) == 0)
        return fail(Code::invalid_argument, required.says);
    std::vector<std::pair<std::string, std::vector<Axis>>> meshes;
    for (const RuleSet::MeshAxis& axis : rules_.axes) {
      auto at =
          std::ranges::find(meshes, axis.mesh, &std::pair<std::string, std::vector<Axis>>::first);
      if (at == meshes.end()) at = meshes.insert(at, {axis.mesh, {}});
      at->second.push_back(RESHARD_TRY(sized(axis)));
    }
    if (meshes.empty()) meshes.emplace_back();
    const Index offset = RESHARD_TRY(spec_.integer("offset", 0, 0));
    std::optional<Index> ranks;
    for (auto& [name, axes] : meshes) {
      if (dp_last_ && axes.size() > 1) std::swap(axes.back(), axes[axes.size() - 2]);
      Mesh mesh = RESHARD_TRY(Mesh::make(std::move(axes), Rank(static_cast<Rank::rep>(offset))));
      if (ranks.value_or(mesh.size()) != mesh.size())
        return fail(Code::invalid_argument, fmt::format("mesh '{}' has {} ranks, and the first one "
                                                        "{}",
                                                        name, mesh.size(), *ranks));
      ranks = mesh.size();
      places_.add(std::move(name), b_.add_mesh(std::move(mesh)));
    }
    return {};
  }

  /// Reads what the notation says: sizes of axes and other keys.
  Result<> read_keys() {
    dtype_ = RESHARD_TRY(spec_.dtype());
    if (!dtype_ && rules_.config_dtype && values_ != nullptr) dtype_ = values_->dtype;
    if (!rules_.card || rules_.card->framework != "megatron") return read_own_keys();
    MegatronCardKeys keys = RESHARD_TRY(megatron_card_keys(spec_));
    numbers_ = std::move(keys.numbers);
    places_.share_stages(std::move(keys.layers), keys.chunks);
    dp_last_ = keys.dp_last;
    return {};
  }

  /// The keys are those that the file lists.
  Result<> read_own_keys() {
    std::set<std::string> known{"offset", "dtype"};
    for (const RuleSet::MeshAxis& axis : rules_.axes) {
      if (axis.of || !known.insert(axis.name).second) continue;
      numbers_[axis.name] = RESHARD_TRY(spec_.integer(axis.name, axis.size));
    }
    for (const RuleSet::Key& key : rules_.keys) {
      known.insert(key.name);
      numbers_[key.name] = RESHARD_TRY(spec_.integer(key.name, key.otherwise, 0));
    }
    return spec_.check_keys(known);
  }

  /// The axis with its size, which rules may then use.
  Result<Axis> sized(const RuleSet::MeshAxis& axis) {
    if (axis.of) numbers_[axis.name] = RESHARD_TRY(axis.of->value(lookup_));
    return Axis{axis.name, numbers_.at(axis.name)};
  }

  Result<> choose_rules() {
    for (const Rule& rule : rules_.rules)
      if (!rule.when || RESHARD_TRY(rule.when->value(lookup_)) != 0) applied_.push_back(&rule);
    return {};
  }

  /// Gives each tensor to the instances that are made of it.
  Result<> collect() {
    RuleIndex index(applied_, m_);
    std::map<std::pair<std::size_t, std::vector<std::string>>, std::size_t> known;
    for (Index i = 0; i < m_.size(); ++i) {
      const TensorId id(static_cast<TensorId::rep>(i));
      auto found = index.find(m_[id].name);
      if (!found) return tl::unexpected(std::move(found).error().in(source()));
      if (found->empty()) return unmatched(m_[id].name);
      for (RuleMatch& match : *found) {
        if (match.rule->omit) {
          b_.omit(id);
          continue;
        }
        const auto key = std::pair(match.number, match.groups);
        const auto [at, is_new] = known.emplace(key, instances_.size());
        if (is_new)
          instances_.push_back({match.rule, match.number, std::move(match.groups),
                                std::vector<std::map<Index, TensorId>>(match.rule->num_parts())});
        auto& tensors = instances_[at->second].parts[match.part];
        if (!tensors.emplace(match.each, id).second)
          return fail(Code::invalid_argument,
                      fmt::format("rule {} makes one local tensor of '{}' and '{}'",
                                  match.number + 1, m_[tensors.at(match.each)].name, m_[id].name));
      }
    }
    return {};
  }

  /// The source of the rules, for messages.
  std::string source() const {
    if (!rules_.card) return fmt::format("'{}'", spec_.file);
    const RuleSet::Card& card = *rules_.card;
    return fmt::format("the card of {} ({} {})", fmt::join(card.architectures, ", "),
                       card.framework, card.release);
  }

  tl::unexpected<Error> unmatched(const std::string& tensor) const {
    return fail(Code::not_found,
                fmt::format("no rule of {} matches tensor '{}'{}", source(), tensor,
                            rules_.card ? ", so the model is held otherwise than those that it was "
                                          "learned from"
                                        : "; add one, or a last rule that matches *"));
  }

  /// "tensor 'a'", or "rule 3 for tensor 'a' and others".
  std::string described(const Instance& instance) const {
    const TensorId* first = nullptr;
    std::size_t count = 0;
    for (const auto& tensors : instance.parts)
      for (const auto& [number, id] : tensors) {
        if (first == nullptr) first = &id;
        ++count;
      }
    const std::string named = fmt::format("tensor '{}'", m_[*first].name);
    return count == 1 ? named
                      : fmt::format("rule {} for {} and others", instance.number + 1, named);
  }

  /// The tensors of a part, in the order of their numbers from 0.
  Result<std::vector<TensorId>> tensors_of(const Instance& instance, std::size_t part) const {
    const RulePart& rule = instance.rule->part(part);
    std::vector<TensorId> tensors;
    for (const auto& [number, id] : instance.parts[part]) {
      if (rule.each > 0 && number != static_cast<Index>(tensors.size()))
        return fail(Code::invalid_argument,
                    fmt::format("the model has no tensor {} of '{}', but tensor {}", tensors.size(),
                                rule.match, number));
      tensors.push_back(id);
    }
    if (!tensors.empty()) return tensors;
    return fail(Code::not_found,
                fmt::format("the model has no tensor that matches '{}' beside it", rule.match));
  }

  Result<std::vector<Section>> sections_of(const Instance& instance, MeshId mesh) {
    RuleSections make(b_, mesh, lookup_);
    const Rule& rule = *instance.rule;
    std::vector<Section> sections;
    for (std::size_t k = 0; k < rule.num_parts(); ++k) {
      const auto tensors = RESHARD_TRY(tensors_of(instance, k));
      const RulePart& part = rule.part(k);
      sections.push_back(
          RESHARD_TRY(rule.together ? make.uncut(part, tensors) : make.section(part, tensors)));
    }
    if (!rule.together) return sections;
    const int dim = RESHARD_TRY(stack_dim(rule, sections));
    return std::vector{RESHARD_TRY(make.together(rule, sections, dim))};
  }

  /// Parts that are stacked must be alike in all other dimensions.
  static Result<int> stack_dim(const Rule& rule, const std::vector<Section>& sections) {
    const Section& first = sections[0];
    const int rank = first.extent.size();
    const int dim = rule.stack < 0 ? rule.stack + rank : rule.stack;
    if (sections.size() == 1) return 0;
    if (dim < 0 || dim >= rank)
      return fail(Code::invalid_argument,
                  fmt::format("stack is {} but its parts have {} dimensions", rule.stack, rank));
    for (const Section& section : sections)
      for (int i = 0; i < rank; ++i)
        if (section.extent.size() != rank ||
            (i != dim &&
             (section.extent[i] != first.extent[i] || section.cuts[static_cast<std::size_t>(i)] !=
                                                          first.cuts[static_cast<std::size_t>(i)])))
          return fail(Code::invalid_argument,
                      fmt::format("its parts differ in more than dimension {}, along which they "
                                  "are stacked",
                                  dim));
    return dim;
  }

  /// True if elements of a section belong to no tensor.
  bool is_padded(const Section& section) const {
    Index covered = 0;
    for (const PlacedBox& part : section.parts) {
      Index elements = 1;
      for (int i = 0; i < part.box.rank(); ++i) elements *= part.box[i].size();
      covered += elements;
    }
    return covered != volume(section.extent);
  }

  Result<> add(const Instance& instance) {
    const Rule& rule = *instance.rule;
    const RulePlaces::Place place = RESHARD_TRY(places_.place(rule, instance.groups));
    auto sections = RESHARD_TRY(sections_of(instance, place.mesh));
    const TensorId id =
        sections[0].parts.empty() ? instance.parts[0].begin()->second : sections[0].parts[0].tensor;
    const CanonicalTensor& first = m_[id];
    std::string name =
        place.front +
        (rule.name.empty() ? first.name : RESHARD_TRY(substituted(rule.name, place.numbers)));
    RESHARD_TRY(names_.take(name, b_.rank_set(place.ranks)));
    const bool casts = is_convertible(first.dtype) && !names_activation_scale(first.name);
    const bool other = casts && (rule.dtype || dtype_);
    const DType dtype = !other ? first.dtype : rule.dtype ? *rule.dtype : *dtype_;
    MergedDims merged =
        RuleSections::is_plain(rule) && rule.with.empty() ? first.merged : MergedDims{};
    for (const int dim : rule.merged)
      merged.bits = static_cast<std::uint8_t>(merged.bits | 1u << static_cast<unsigned>(dim));
    b_.add(Slot{.name = std::move(name),
                .dtype = dtype,
                .mesh = place.mesh,
                .ranks = place.ranks,
                .stack_dim = RESHARD_TRY(stack_dim(rule, sections)),
                .padded = std::ranges::any_of(sections, [&](auto& s) { return is_padded(s); }),
                .sections = std::move(sections),
                .merged = merged,
                .map = rule.map,
                .casts = other,
                .rule = static_cast<std::int32_t>(instance.number) + 1});
    return {};
  }

  std::optional<std::int64_t> number_named(std::string_view name) const {
    if (const auto own = numbers_.find(name); own != numbers_.end()) return own->second;
    if (values_ == nullptr) return std::nullopt;
    const auto found = values_->numbers.find(name);
    return found == values_->numbers.end() ? std::nullopt : std::optional(found->second);
  }

  const LayoutSpec& spec_;
  const RuleSet& rules_;
  const ConfigValues* values_;
  const ModelSpec& m_;
  LayoutBuilder b_;
  std::map<std::string, Index, std::less<>> numbers_;  ///< of axes and keys.
  const Expression::Lookup lookup_ = [this](std::string_view name) { return number_named(name); };
  std::optional<DType> dtype_;  ///< of rules that give none.
  RulePlaces places_{b_, lookup_};
  bool dp_last_ = false;  ///< the last two axes of meshes (dp, pp) change places.
  std::vector<const Rule*> applied_;
  std::vector<Instance> instances_;
  LocalNames names_;
};

}  // namespace

}  // namespace reshard::families

namespace reshard {

Result<ModelLayout> rules_layout(const LayoutSpec& spec, const FamilyInput& input,
                                 const RuleSet& rules) {
  using namespace families;
  return Rules(spec, input, rules).build();
}

}  // namespace reshard
