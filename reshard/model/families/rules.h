// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/dtype.h"
#include "reshard/base/text/expression.h"
#include "reshard/base/value_map.h"
#include "reshard/sharding/cut.h"

namespace reshard {

/// A part of a local tensor, made of the canonical tensors whose names match a pattern. In the
/// order in which they apply: `take`, `dims`, `each`, `pad`, `cuts`. Expressions may use the
/// numbers of the model's config, the sizes of the axes and the keys; some may use `extent`, the
/// size of their dimension.
struct RulePart {
  /// Elements [begin, end) of a dimension or, with `period`, of each run of so many elements.
  struct Take {
    int dim = 0;
    Expression begin, end;  ///< may use `extent`: the tensor's.
    std::optional<Expression> period = {};
  };
  /// Rounds a dimension up to a multiple of both `multiple` and the number of its parts.
  struct Pad {
    int dim = 0;
    Expression multiple = 1;
  };
  struct Cut {
    int dim = 0;                    ///< negative counts from the last.
    std::vector<std::string> axes;  ///< applied in this order.
    CutRule rule = CutRule::balanced;
    DimCut::Combine combine = DimCut::Combine::sequential;
    Expression granule = 1;               ///< may use `extent`: that of the dimension.
    bool even = false;                    ///< all ranks must have the same number of granules.
    std::optional<Expression> when = {};  ///< cuts only if it is not 0.
  };

  std::string match;    ///< '*' matches any run of characters, '#' a run of digits; the whole name
                        ///< must match.
  bool shared = false;  ///< also tensors that belong to another part.
  std::vector<Take> take = {};
  std::vector<int> dims = {};  ///< dimension i of the tensor becomes dims[i]; empty: as they are.
  /// A wildcard of `match`, counted from 1; 0: none. Tensors whose names differ in its number only
  /// are stacked along a new first dimension, in the order of these numbers, which begin at 0. The
  /// other wildcards are then counted without it.
  int each = 0;
  std::vector<Pad> pad = {};
  std::vector<Cut> cuts = {};
};

/// How layers share stages that do not divide them: which stages have one more.
enum class StageRest : std::uint8_t { first, last, before_last };

/// One entry of a rules file: a local tensor for all tensors that match the same way. It is its
/// first part; `with` are further ones, stacked after it.
struct Rule : RulePart {
  /// Restricts the tensor to some ranks: those whose coordinate on `axis` is `at` (or the last),
  /// or, without `at`, that of the number v that wildcard `number` (from 1) of the pattern matched:
  /// floor(v / per), or the stage of layer v of `of` layers.
  struct Where {
    std::string axis;
    std::optional<Index> at;  ///< negative counts from the last.
    int number = 0;
    Index per = 1;
    std::optional<Expression> of = {};
    StageRest rest = StageRest::first;
    bool or_last = false;   ///< with `at`: also the last coordinate.
    bool renumber = false;  ///< with `of`: in `name`, v counts from the first at its coordinate.
  };

  std::vector<RulePart> with = {};
  std::string name;  ///< local name; empty: the canonical one. "$1" is what the first '*' or '#'
                     ///< matched, ...
  std::string beside = {};  ///< applies only if the model has this tensor, "$1" as in `name`;
                            ///< empty: to all that match.
  std::optional<DType> dtype;  ///< of the local tensor, if it is a convertible one; else as it is.
  int stack = 0;               ///< the dimension along which parts follow each other.
  /// The cuts of the first part cut the whole tensor, after its parts are stacked; further parts
  /// have none. False: each part is cut by itself.
  bool together = false;
  /// With `together`: the parts alternate along `stack`. Each has as many units, and the whole is
  /// the first unit of each part, then the second of each, ...
  std::optional<Expression> interleave = {};
  std::vector<int> merged = {};  ///< dimensions k that the module has as one with k + 1.
  ValueMap map = ValueMap::identity;
  bool omit = false;                    ///< the tensors are left out on purpose.
  std::optional<Expression> when = {};  ///< the rule applies only if it is not 0.
  std::vector<Where> where;

  std::size_t num_parts() const { return 1 + with.size(); }
  const RulePart& part(std::size_t i) const { return i == 0 ? *this : with[i - 1]; }
};

/// A rules file: mesh axes, fastest first, and rules; or a layout card. A tensor belongs to the
/// first part of the first rule that matches it.
struct RuleSet {
  /// A key of the notation that is no axis.
  struct Key {
    std::string name;
    Index otherwise = 1;  ///< its value if the notation is silent.
  };
  struct Requirement {
    Expression that;  ///< of keys, axes that are keys, and the config: must not be 0.
    std::string says;
  };
  /// Whose layout the rules are, of a card: rules that were learned from a framework.
  struct Card {
    std::string framework, release;                       ///< such as "vllm" and "0.32.0".
    std::vector<std::string> architectures, model_types;  ///< of the configs that it is for.
    std::string proof;                                    ///< how it was proved, for people.
  };
  /// An axis of a mesh. A key of the notation sets its size, or it follows from such keys. An axis
  /// of the name of an earlier one, in another mesh, has its size.
  struct MeshAxis {
    std::string name;
    Index size = 1;                     ///< if the notation is silent.
    std::optional<Expression> of = {};  ///< the size, of keys and earlier axes; no key sets it.
    std::string mesh = {};              ///< several meshes lie over the same ranks.
    friend bool operator==(const MeshAxis& a, const MeshAxis& b) = default;
  };
  std::vector<MeshAxis> axes;
  std::vector<Rule> rules;
  std::optional<Card> card = {};
  std::vector<Key> keys = {};
  std::vector<Requirement> require = {};
  /// Floating-point tensors have the dtype of the config, unless the notation says another.
  bool config_dtype = false;
};

}  // namespace reshard
