// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/families/rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

#include "reshard/model/families.h"
#include "reshard/model/families/local_names.h"
#include "reshard/model/families/megatron/card_keys.h"
#include "reshard/model/families/rules/class_names.h"
#include "reshard/model/families/rules/complete.h"
#include "reshard/model/families/rules/expert_order.h"
#include "reshard/model/families/rules/rule_index.h"
#include "reshard/model/families/rules/rule_places.h"
#include "reshard/model/families/rules/rule_sections.h"
#include "reshard/model/families/rules/rule_values.h"
#include "reshard/model/layout_builder.h"
#include "reshard/model/names.h"
#include "reshard/model/quant/files.h"

namespace reshard::families {
namespace {

/// The largest number of local tensors that the indices of tensors may make, in one layout.
constexpr Index kMaxApart = Index{1} << 20;

/// A tensor, and the number of the wildcard `each`.
struct Numbered {
  Index number = 0;
  TensorId id;
};

/// The local tensor that a rule makes of the tensors with the same wildcards.
struct Instance {
  std::size_t rule = 0;             ///< among those that apply.
  std::vector<std::string> groups;  ///< what the wildcards matched, and the index of `apart`.
  Index index = 0;                  ///< of the first dimension, with `apart`.
  std::vector<std::vector<Numbered>> parts;  ///< the tensors of each part, by number.
};

class Rules {
 public:
  Rules(const LayoutSpec& spec, const FamilyInput& input, const RuleSet& rules)
      : spec_(spec),
        rules_(rules),
        config_(rules.card ? input.config : nullptr),
        may_lack_(input.may_lack),
        lacked_(input.lacked),
        m_(*input.model),
        b_(to_string(spec), input.model),
        values_(spec, input, rules),
        orders_(input.expert_map) {}

  Result<ModelLayout> build() {
    auto made = build_all();
    if (made || made.error().message.starts_with(spec_.family + ":")) return made;
    return tl::unexpected(std::move(made).error().in(spec_.family));
  }

 private:
  Result<ModelLayout> build_all() {
    RESHARD_TRY(make_meshes());
    RESHARD_TRY(choose_rules());
    RESHARD_TRY(check_head());
    RESHARD_TRY(collect());
    if (config_ == nullptr)  // else open_model() has checked the tensors
      RESHARD_TRY(check_complete(rules_.complete, m_, lookup_, may_lack_, lacked_));
    for (const Instance& instance : instances_)
      if (auto added = add(instance); !added)
        return misplaced_ ? tl::unexpected(std::move(added).error())
                          : tl::unexpected(std::move(added).error().in(described(instance)));
    return std::move(b_).finish();
  }

  /// The head is the only tensor that a known class may lack. All modules of engines have one.
  Result<> check_head() const {
    if (config_ == nullptr || config_->is_bare || config_->tie_word_embeddings) return {};
    const std::string head = HfNames(*config_).lm_head();
    if (m_.find(head)) return {};
    return fail(Code::not_found, fmt::format("tensor '{}' is missing from the model", head));
  }

  Result<> make_meshes() {
    RESHARD_TRY(read_keys());
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

  /// Reads what the notation says: sizes of axes and other keys. Names all that is wrong.
  Result<> read_keys() {
    ErrorList wrong(spec_.family);
    if (rules_.card && rules_.card->framework == "megatron") {
      MegatronCardKeys keys = RESHARD_TRY(megatron_card_keys(spec_));
      for (const auto& [name, value] : keys.numbers) values_.set(name, value);
      places_.share_stages(std::move(keys.layers), keys.chunks);
      dp_last_ = keys.dp_last;
    } else {
      values_.read_keys(wrong);
      wrong.add(spec_.integer("offset", 0, 0));
    }
    dtype_ = wrong.take(spec_.dtype());
    if (!dtype_ && rules_.config_dtype) dtype_ = usual_dtype();
    RESHARD_TRY(values_.read_let());
    values_.check(wrong);
    return wrong.result();
  }

  /// The dtype of the config or, if that of a known class gives none, of the embedding.
  std::optional<DType> usual_dtype() const {
    if (values_.config_dtype() || config_ == nullptr) return values_.config_dtype();
    const auto id = m_.find(HfNames(*config_).embedding());
    return id && is_convertible(m_[*id].dtype) ? std::optional(m_[*id].dtype) : std::nullopt;
  }

  /// The axis with its size, which rules may then use.
  Result<Axis> sized(const RuleSet::MeshAxis& axis) {
    if (axis.of) values_.set(axis.name, RESHARD_TRY(axis.of->value(lookup_)));
    return Axis{axis.name, values_.at(axis.name)};
  }

  Result<> choose_rules() {
    for (std::size_t i = 0; i < rules_.rules.size(); ++i) {
      const Rule& rule = rules_.rules[i];
      AppliedRule applied;
      applied.rule = &rule;
      applied.number = rule.number > 0 ? rule.number : i + 1;
      for (std::size_t k = 0; k < rule.num_parts(); ++k)
        applied.parts.push_back(RESHARD_TRY(holds(rule.part(k).when)));
      if (!applied.parts[0]) continue;
      if (rule.from) applied.from = RESHARD_TRY(rule.from->value(lookup_));
      if (rule.below) applied.below = RESHARD_TRY(rule.below->value(lookup_));
      applied.name = RESHARD_TRY(values_.named(rule.name));
      applied_.push_back(std::move(applied));
    }
    return {};
  }

  Result<bool> holds(const std::optional<Expression>& when) const {
    return !when || RESHARD_TRY(when->value(lookup_)) != 0;
  }

  /// Gives each tensor to the instances that are made of it.
  Result<> collect() {
    RuleIndex index(applied_, m_, class_names_, lookup_);
    last_.assign(applied_.size(), 0);
    for (Index i = 0; i < m_.size(); ++i) {
      const TensorId id(static_cast<TensorId::rep>(i));
      auto found = index.find(class_names_.of(m_[id].name), m_[id]);
      if (!found) return tl::unexpected(std::move(found).error().in(source()));
      if (found->empty() && rules_.card && is_input_scale(m_[id].name))
        b_.omit(id);
      else if (found->empty())
        return unmatched(m_[id].name);
      for (RuleMatch& match : *found)
        if (applied_[match.rule].rule->omit)
          b_.omit(id);
        else if (applied_[match.rule].rule->apart)
          RESHARD_TRY(collect_apart(match, id));
        else
          RESHARD_TRY(collect(std::move(match), id, 0));
    }
    for (Instance& instance : instances_) RESHARD_TRY(check(instance));
    return {};
  }

  /// Gives each index of a tensor's first dimension to an instance.
  Result<> collect_apart(const RuleMatch& match, TensorId id) {
    const Dims& shape = m_[id].shape;
    const Index count = shape.size() == 0 ? 0 : shape[0];
    if (count > kMaxApart - num_apart_)
      return fail(Code::invalid_argument,
                  fmt::format("'{}': rule {} would make more than {} local "
                              "tensors of single indices",
                              m_[id].name, applied_[match.rule].number, kMaxApart));
    num_apart_ += count;
    for (Index i = 0; i < count; ++i) {
      RuleMatch one = match;
      one.groups.push_back(std::to_string(i));
      RESHARD_TRY(collect(std::move(one), id, i));
    }
    return {};
  }

  Result<> collect(RuleMatch match, TensorId id, Index index) {
    const Rule& rule = *applied_[match.rule].rule;
    if (!rule.of.empty()) {
      const std::string of =
          class_names_.in_checkpoint(RESHARD_TRY(substituted(rule.of, match.groups)));
      const auto other = m_.find(of);
      if (!other)
        return fail(Code::not_found, fmt::format("tensor '{}' is missing from the model", of));
      id = *other;
    }
    auto& tensors = instance_of(match, index).parts[match.part];
    if (rule.part(match.part).each == 0 && !tensors.empty())
      return twice(match.rule, tensors[0].id, id);
    tensors.push_back({match.each, id});
    return {};
  }

  /// Instances of consecutive tensors are often the same.
  Instance& instance_of(RuleMatch& match, Index index) {
    std::size_t& last = last_[match.rule];
    if (last > 0 && instances_[last - 1].groups == match.groups) return instances_[last - 1];
    std::string key = fmt::to_string(match.rule);
    for (const std::string& group : match.groups) key += '\0' + group;
    const auto [at, is_new] = known_.emplace(std::move(key), instances_.size());
    last = at->second + 1;
    if (is_new)
      instances_.push_back(
          {match.rule, std::move(match.groups), index,
           std::vector<std::vector<Numbered>>(applied_[match.rule].rule->num_parts())});
    return instances_[at->second];
  }

  /// Sorts the tensors of parts, and notes the layers with experts.
  Result<> check(Instance& instance) {
    const AppliedRule& applied = applied_[instance.rule];
    for (std::size_t k = 0; k < instance.parts.size(); ++k) {
      auto& tensors = instance.parts[k];
      std::ranges::stable_sort(tensors, {}, &Numbered::number);
      const auto same = std::ranges::adjacent_find(tensors, {}, &Numbered::number);
      if (same != tensors.end()) return twice(instance.rule, same->id, (same + 1)->id);
      if (places_experts(applied.rule->part(k)) && !tensors.empty())
        orders_.add_layer(class_names_.of(m_[tensors[0].id].name));
    }
    return {};
  }

  tl::unexpected<Error> twice(std::size_t rule, TensorId first, TensorId second) const {
    return fail(Code::invalid_argument,
                fmt::format("rule {} makes one local tensor of '{}' and '{}'",
                            applied_[rule].number, m_[first].name, m_[second].name));
  }

  bool places_experts(const RulePart& part) const {
    return (part.each > 0 || part.experts) && values_.has("redundant");
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
      for (const Numbered& tensor : tensors) {
        if (first == nullptr) first = &tensor.id;
        ++count;
      }
    const std::string named = fmt::format("tensor '{}'", m_[*first].name);
    return count == 1
               ? named
               : fmt::format("rule {} for {} and others", applied_[instance.rule].number, named);
  }

  /// The tensors of a part, in the order of their numbers from 0.
  Result<std::vector<TensorId>> tensors_of(const Instance& instance, std::size_t part) const {
    const RulePart& rule = applied_[instance.rule].rule->part(part);
    std::vector<TensorId> tensors;
    tensors.reserve(instance.parts[part].size());
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
    const AppliedRule& applied = applied_[instance.rule];
    const Rule& rule = *applied.rule;
    std::vector<Section> sections;
    for (std::size_t k = 0; k < rule.num_parts(); ++k) {
      const RulePart& part = rule.part(k);
      if (!applied.parts[k] || part.behind) continue;
      const auto tensors = RESHARD_TRY(tensors_of(instance, k));
      std::optional<TensorId> behind;
      if (k + 1 < rule.num_parts() && applied.parts[k + 1] && rule.part(k + 1).behind)
        behind = RESHARD_TRY(tensors_of(instance, k + 1))[0];
      const auto experts = RESHARD_TRY(experts_of(make, part, tensors, behind));
      const auto* placed = experts.order != nullptr ? &experts : nullptr;
      sections.push_back(RESHARD_TRY(rule.together ? make.uncut(part, tensors, placed)
                                                   : make.section(part, tensors, placed)));
    }
    if (RESHARD_TRY(holds_if(rule.reverse))) std::ranges::reverse(sections);
    if (!rule.together) return sections;
    const int dim = RESHARD_TRY(stack_dim(rule, sections));
    return std::vector{RESHARD_TRY(make.together(rule, sections, dim))};
  }

  Result<bool> holds_if(const std::optional<Expression>& when) const {
    return when && RESHARD_TRY(when->value(lookup_)) != 0;
  }

  /// The order of a part's experts, as the keys of the notation place them; without one if it has
  /// none.
  Result<RuleSections::Experts> experts_of(const RuleSections& make, const RulePart& part,
                                           const std::vector<TensorId>& tensors,
                                           std::optional<TensorId> behind) {
    RuleSections::Experts out;
    if (!places_experts(part)) return out;
    const CanonicalTensor& first = m_[tensors[0]];
    const RuleSections::Shares shares = RESHARD_TRY(make.expert_ranks(part));
    ExpertPlacement how{
        .num_experts = part.experts ? first.shape[0] : static_cast<Index>(tensors.size()),
        .redundant = values_.at("redundant"),
        .ep = shares.count,
        .round_robin = values_.number("placement.round_robin").value_or(0) != 0,
        .even = shares.even};
    if (behind) {
      out.behind = RESHARD_TRY(make.behind(tensors[0], *behind));
      how.behind = out.behind->count;
    }
    const auto order = orders_.of(class_names_.of(first.name), how);
    misplaced_ = !order;
    out.order = RESHARD_TRY(order);
    return out;
  }

  /// Parts that are stacked must be alike in all other dimensions.
  static Result<int> stack_dim(const Rule& rule, const std::vector<Section>& sections) {
    const Section& first = sections[0];
    const int rank = first.extent.size();
    const int dim = rule.stack < 0 ? rule.stack + rank : rule.stack;
    const bool fits = dim >= 0 && dim < rank;
    if (sections.size() == 1) return fits ? dim : 0;
    if (!fits)
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

  /// The dimensions that the module has as one: of the tensor, of the rule, and that which
  /// RuleSections::set_index() adds.
  static MergedDims merged_dims(const Rule& rule, const CanonicalTensor& first) {
    const bool plain = RuleSections::is_plain(rule) && rule.with.empty();
    unsigned bits = plain ? first.merged.bits : 0u;
    for (const int dim : rule.merged) bits |= 1u << static_cast<unsigned>(dim);
    return {static_cast<std::uint8_t>(rule.apart ? bits << 1 | 1u : bits)};
  }

  Result<> add(const Instance& instance) {
    const AppliedRule& applied = applied_[instance.rule];
    const Rule& rule = *applied.rule;
    const RulePlaces::Place place = RESHARD_TRY(places_.place(rule, instance.groups));
    auto sections = RESHARD_TRY(sections_of(instance, place.mesh));
    int stack = RESHARD_TRY(stack_dim(rule, sections));
    if (rule.apart) {
      for (Section& section : sections) RuleSections::set_index(section, instance.index);
      if (sections.size() > 1) ++stack;
    }
    const TensorId id =
        sections[0].parts.empty() ? instance.parts[0][0].id : sections[0].parts[0].tensor;
    const CanonicalTensor& first = m_[id];
    std::string name =
        place.front +
        (rule.name.empty() ? first.name : RESHARD_TRY(substituted(applied.name, place.numbers)));
    RESHARD_TRY(names_.take(name, b_.rank_set(place.ranks)));
    const bool casts = is_convertible(first.dtype) && !names_activation_scale(first.name);
    auto wanted = rule.dtype;
    if (rule.config_dtype) wanted = values_.config_dtype();
    if (!wanted) wanted = dtype_;
    Slot slot{.name = std::move(name),
              .dtype = casts && wanted ? *wanted : first.dtype,
              .mesh = place.mesh,
              .ranks = place.ranks,
              .stack_dim = stack,
              .padded = std::ranges::any_of(sections, [&](auto& s) { return is_padded(s); }),
              .sections = std::move(sections),
              .merged = merged_dims(rule, first),
              .map = rule.map,
              .casts = casts && wanted,
              .rule = static_cast<std::int32_t>(applied.number)};
    if (rule.swap && RESHARD_TRY(rule.swap->when.value(lookup_)) != 0)
      RESHARD_TRY(swap_dims(slot, *rule.swap));
    b_.add(std::move(slot));
    return {};
  }

  static Result<> swap_dims(Slot& slot, const Rule::Swap& swap) {
    const int rank = slot.sections[0].extent.size(), a = swap.first, b = swap.second;
    if (a >= rank || b >= rank)
      return fail(Code::invalid_argument,
                  fmt::format("swap of dimensions {} and {} but the tensor has {}", a, b, rank));
    const auto swapped = [&](int dim) { return dim == a ? b : dim == b ? a : dim; };
    slot.stack_dim = swapped(slot.stack_dim);
    for (Section& section : slot.sections) {
      std::swap(section.extent[a], section.extent[b]);
      std::swap(section.cuts[static_cast<std::size_t>(a)],
                section.cuts[static_cast<std::size_t>(b)]);
      for (PlacedBox& part : section.parts) {
        std::swap(part.at[a], part.at[b]);
        for (int i = 0; i < part.box.rank(); ++i) {
          auto& dim = part.dims[static_cast<std::size_t>(i)];
          dim = static_cast<std::int8_t>(swapped(dim));
        }
      }
    }
    return {};
  }

  const LayoutSpec& spec_;
  const RuleSet& rules_;
  const ModelConfig* config_;  ///< of a card, if it describes the class.
  const std::set<std::string>* may_lack_;
  std::set<std::string>* lacked_;
  const ModelSpec& m_;
  LayoutBuilder b_;
  RuleValues values_;
  const Expression::Lookup lookup_ = [this](std::string_view name) { return values_.number(name); };
  std::optional<DType> dtype_;  ///< of rules that give none.
  RulePlaces places_{b_, lookup_};
  ClassNames class_names_{config_};
  bool dp_last_ = false;  ///< the last two axes of meshes (dp, pp) change places.
  std::vector<AppliedRule> applied_;
  std::vector<Instance> instances_;
  std::unordered_map<std::string, std::size_t> known_;  ///< instances, by rule and groups.
  std::vector<std::size_t> last_;  ///< of each rule: the instance of its last match, from 1.
  ExpertOrders orders_;
  Index num_apart_ = 0;     ///< instances that are single indices of tensors.
  bool misplaced_ = false;  ///< the error is one of the notation's, and of no rule.
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
