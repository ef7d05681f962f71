// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/families/rules.h"

#include <fmt/format.h>

#include <charconv>
#include <set>

#include "reshard/model/families.h"
#include "reshard/model/families/local_names.h"
#include "reshard/model/layout_builder.h"
#include "reshard/model/name_pattern.h"
#include "reshard/model/quant/files.h"

namespace reshard::families {
namespace {

class Rules {
 public:
  Rules(const LayoutSpec& spec, const FamilyInput& input, const RuleSet& rules)
      : spec_(spec), rules_(rules), m_(*input.model), b_(to_string(spec), input.model) {}

  Result<ModelLayout> build() {
    RESHARD_TRY(make_mesh());
    for (Index i = 0; i < m_.size(); ++i) {
      const TensorId id(static_cast<TensorId::rep>(i));
      const Rule* found = nullptr;
      std::vector<std::string> groups;
      for (const Rule& rule : rules_.rules) {
        auto matched = matcher_.match(rule.match, m_[id].name);
        if (!matched) return tl::unexpected(std::move(matched).error().in(spec_.file));
        if (*matched) {
          found = &rule;
          groups = std::move(**matched);
          break;
        }
      }
      if (found == nullptr)
        return fail(Code::not_found, fmt::format("rules: no rule of '{}' matches tensor '{}'; add "
                                                 "one, or a last rule that matches *",
                                                 spec_.file, m_[id].name));
      if (auto r = add(*found, id, groups); !r)
        return tl::unexpected(
            std::move(r).error().in(fmt::format("rules: tensor '{}'", m_[id].name)));
    }
    return std::move(b_).finish();
  }

 private:
  Result<> make_mesh() {
    std::set<std::string> known{"offset", "dtype"};
    std::vector<Axis> axes = rules_.axes;
    for (Axis& axis : axes) {
      known.insert(axis.name);
      axis.size = RESHARD_TRY(spec_.integer(axis.name, axis.size));
    }
    RESHARD_TRY(spec_.check_keys(known));
    dtype_ = RESHARD_TRY(spec_.dtype());
    const Index offset = RESHARD_TRY(spec_.integer("offset", 0, 0));
    mesh_ =
        b_.add_mesh(RESHARD_TRY(Mesh::make(std::move(axes), Rank(static_cast<Rank::rep>(offset)))));
    return {};
  }

  Result<int> axis(const std::string& name) const {
    const int i = b_.mesh(mesh_).axis(name);
    if (i < 0)
      return fail(Code::invalid_argument,
                  fmt::format("axis '{}' is not among the file's axes", name));
    return i;
  }

  Result<CutId> cut_id(const Rule::Cut& cut) {
    DimCut how;
    if (cut.axes.size() > how.axes.size())
      return fail(Code::invalid_argument,
                  fmt::format("a dimension can be cut over at most {} axes, not {}",
                              how.axes.size(), cut.axes.size()));
    for (const std::string& name : cut.axes)
      how.axes[static_cast<std::size_t>(how.num_axes++)] =
          static_cast<std::int8_t>(RESHARD_TRY(axis(name)));
    how.rule = cut.rule;
    how.combine = cut.combine;
    how.granule = cut.granule;
    return b_.add_cut(how);
  }

  /// The ranks with the coordinates that `where` requires.
  Result<RankSet> ranks(const Rule& rule, const std::vector<std::string>& groups) {
    const Mesh& mesh = b_.mesh(mesh_);
    RankSet held = RankSet::range(mesh.first().value(), mesh.first().value() + mesh.size());
    for (const Rule::Where& w : rule.where) {
      const int a = RESHARD_TRY(axis(w.axis));
      Index at = w.at.value_or(0);
      if (!w.at) {
        if (w.number < 1 || static_cast<std::size_t>(w.number) > groups.size())
          return fail(Code::invalid_argument,
                      fmt::format("where: number {} but the pattern has {} wildcards", w.number,
                                  groups.size()));
        const std::string& text = groups[static_cast<std::size_t>(w.number - 1)];
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), at);
        if (error != std::errc() || end != text.data() + text.size())
          return fail(Code::invalid_argument, fmt::format("where: '{}' is not a number", text));
        at /= w.per;
      }
      if (at < 0 || at >= mesh.axes()[static_cast<std::size_t>(a)].size)
        return fail(Code::invalid_argument,
                    fmt::format("where: {}={} is outside the axis, which has size {}", w.axis, at,
                                mesh.axes()[static_cast<std::size_t>(a)].size));
      RankSet kept;
      held.for_each([&](Rank r) {
        if (mesh.coordinate(r, a) == at) kept.insert(r);
      });
      held = std::move(kept);
    }
    return held;
  }

  /// Cuts a dimension of the stored tensor. If it is several dimensions of the index space, cuts
  /// must fall between indices of the first of them.
  Result<> cut_stored(Section& section, const CanonicalTensor& tensor, int dim, Rule::Cut cut) {
    int first = 0;
    for (int at = 0; at < dim; ++at, ++first)
      while ((tensor.merged.bits >> first & 1) != 0) ++first;
    Index minor = 1;
    for (int k = first; (tensor.merged.bits >> k & 1) != 0; ++k) minor *= tensor.shape[k + 1];
    const bool by_granule = cut.granule % minor == 0;
    if (by_granule) cut.granule /= minor;
    const CutId id = RESHARD_TRY(cut_id(cut));
    const Index parts = num_parts(b_.dim_cut(id), b_.mesh(mesh_));
    if (!by_granule && (cut.granule != 1 || tensor.shape[first] % parts != 0))
      return fail(
          Code::unsupported,
          fmt::format("dimension {} of {} parts of {} elements each would be cut inside one; "
                      "give it a granule that is a multiple of {}",
                      dim, tensor.shape[first], minor, minor));
    section.cuts[static_cast<std::size_t>(first)] = id;
    return {};
  }

  Result<> add(const Rule& rule, TensorId id, const std::vector<std::string>& groups) {
    Section section = whole_tensor(m_, id);
    const int rank = m_[id].stored_shape().size();
    for (const Rule::Cut& cut : rule.cuts) {
      const int dim = cut.dim < 0 ? cut.dim + rank : cut.dim;
      if (dim < 0 || dim >= rank)
        return fail(Code::invalid_argument,
                    fmt::format("cut of dimension {} but the tensor has {}", cut.dim, rank));
      RESHARD_TRY(cut_stored(section, m_[id], dim, cut));
    }
    std::string name =
        rule.name.empty() ? m_[id].name : RESHARD_TRY(substituted(rule.name, groups));
    const RankSet held = RESHARD_TRY(ranks(rule, groups));
    RESHARD_TRY(names_.take(name, held));
    const bool casts = is_convertible(m_[id].dtype) && !names_activation_scale(m_[id].name);
    const auto dtype = !casts ? std::nullopt : rule.dtype ? rule.dtype : dtype_;
    b_.add(Slot{.name = std::move(name),
                .dtype = dtype.value_or(m_[id].dtype),
                .mesh = mesh_,
                .ranks = b_.add_ranks(held),
                .sections = {std::move(section)},
                .merged = m_[id].merged,
                .casts = dtype.has_value()});
    return {};
  }

  const LayoutSpec& spec_;
  const RuleSet& rules_;
  const ModelSpec& m_;
  LayoutBuilder b_;
  std::optional<DType> dtype_;  ///< of rules that give none.
  MeshId mesh_;
  PatternMatcher matcher_;
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
