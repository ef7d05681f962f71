// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "reshard/model/families/rules.h"
#include "reshard/model/layout_builder.h"

namespace reshard::families {

/// Makes the section of a slot that a part of a rule describes.
class RuleSections {
 public:
  /// Experts in one tensor, beside each other along `dim`, of the shape of those in other tensors.
  struct Behind {
    TensorId id;
    int dim = 0;
    Index size = 0, count = 0;  ///< of an expert along `dim`; of experts.
  };
  /// The experts of a part in the order of ranks; from the number of the part's own on, those
  /// behind.
  struct Experts {
    const std::vector<Index>* order = nullptr;
    std::optional<Behind> behind = {};
  };

  /// Borrows all three. `numbers`: of the axes, keys and the config.
  RuleSections(LayoutBuilder& builder, MeshId mesh, const Expression::Lookup& numbers)
      : b_(builder), mesh_(mesh), numbers_(numbers) {}

  /// The section of a part. `tensors`: one, or those of the wildcard `each` in its order; with
  /// `experts`, in that order. Errors: a dimension or a number that does not fit the tensors.
  Result<Section> section(const RulePart& part, const std::vector<TensorId>& tensors,
                          const Experts* experts = nullptr);

  /// Joins the uncut sections of a rule's parts along `dim`, one after the other or interleaved,
  /// and cuts the whole as the rule says. Errors: units that do not divide a part.
  /// @pre the sections are alike in all other dimensions
  Result<Section> together(const Rule& rule, const std::vector<Section>& parts, int dim);
  /// The section of a part before it is cut. Errors as of section().
  Result<Section> uncut(const RulePart& part, const std::vector<TensorId>& tensors,
                        const Experts* experts = nullptr);

  /// The number of parts that the part's cuts make of dimension 0, and whether they must be equal.
  struct Shares {
    Index count = 1;
    bool even = false;
  };
  Result<Shares> expert_ranks(const RulePart& part) const;
  /// The experts in `id`, which are of the shape of `one`. Errors: it is no whole number of them.
  Result<Behind> behind(TensorId one, TensorId id) const;

  /// Makes a section of what index `i` of tensors' first dimension has, of parts with `apart`: it
  /// gets that dimension back, of size 1.
  static void set_index(Section& section, Index i);

  /// True if the part takes its one tensor as it is, and may cut dimensions of the stored tensor
  /// that are several of the index space.
  static bool is_plain(const RulePart& part);

 private:
  struct Piece {
    Interval of;   ///< the tensor's elements.
    Index at = 0;  ///< in the full tensor.
  };
  /// The elements that are taken of a tensor along one of its dimensions.
  struct Pieces {
    std::vector<Piece> pieces;
    Index extent = 0;
  };
  /// A section that is made of boxes of one tensor after the other.
  struct Uncut {
    Section section;
    std::array<std::int8_t, kMaxDims> dims{};  ///< of a tensor -> of the section.
    std::vector<Pieces> pieces = {};           ///< of each of a tensor's dimensions.

    /// Adds a tensor, at `entry` along the dimension that it has not; or expert `expert` of those
    /// in it.
    void add(TensorId id, Index entry, const Behind* behind, Index expert);
  };
  Result<Section> plain(const RulePart& part, TensorId id);
  static Section joined(const std::vector<Section>& parts, int dim);
  Result<Section> interleaved(const std::vector<Section>& parts, int dim, Index units) const;
  static Pieces runs_of(const std::vector<Index>& order);
  Result<> check_alike(const RulePart& part, const std::vector<TensorId>& tensors) const;
  Result<> cut_dims(const RulePart& part, Section& section);
  Result<Pieces> taken(const RulePart& part, int dim, Index extent) const;
  Result<> pad(const RulePart& part, Section& section);
  Result<> cut_stored(Section& section, const CanonicalTensor& tensor, int dim,
                      const RulePart::Cut& cut);
  Result<> cut_dim(Section& section, int dim, const RulePart::Cut& cut);
  Result<DimCut> how(const RulePart::Cut& cut, Index extent) const;
  /// The cuts whose condition holds. Errors: two of one dimension, or over one axis.
  Result<std::vector<const RulePart::Cut*>> applied(const RulePart& part) const;
  Result<Index> number(const Expression& expression, Index extent, Index least) const;
  Result<int> dim_of(int dim, int rank, const char* what) const;

  LayoutBuilder& b_;
  MeshId mesh_;
  const Expression::Lookup& numbers_;
};

}  // namespace reshard::families
