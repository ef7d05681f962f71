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

/// The largest number of '#' in a pattern of RuleSet::Complete.
inline constexpr unsigned kMaxCompleteNumbers = 3;

/// A part of a local tensor, made of the canonical tensors whose names match a pattern. In the
/// order in which they apply: `apart`, `take`, `dims`, `each`, `pad`, `cuts`. Expressions may use
/// the numbers of the model's config, the sizes of the axes, the keys and `let`; some may use
/// `extent`, the size of their dimension. Experts lie along dimension 0 of a part with `each` or
/// `experts`, in the order that the keys redundant, expert_map and placement give them, if a file
/// has these.
struct RulePart {
  /// Elements [begin, end) of a dimension or, with `period`, of each run of so many elements. With
  /// `turns` = n, each such run is dealt out: its elements 0, n, 2 n, ... come first, then 1, n +
  /// 1, and so on.
  struct Take {
    int dim = 0;
    Expression begin, end;  ///< may use `extent`: the tensor's.
    std::optional<Expression> period = {}, turns = {};
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
  /// Only tensors of this shape, as files store them; empty: of any.
  std::vector<Expression> shape = {};
  /// Each index of the tensor's first dimension makes a local tensor of its own, without that
  /// dimension: all other keys but `shape` are of what is left. The index, from 0, is a further
  /// wildcard, the last one. All parts of a rule or none; not with `each` or `experts`.
  bool apart = false;
  std::vector<Take> take = {};
  std::vector<int> dims = {};  ///< dimension i of the tensor becomes dims[i]; empty: as they are.
  /// A wildcard of `match`, counted from 1; 0: none. Tensors whose names differ in its number only
  /// are stacked along a new first dimension, in the order of these numbers, which begin at 0. The
  /// other wildcards are then counted without it.
  int each = 0;
  bool experts = false;  ///< dimension 0 of the tensor counts experts.
  /// True for a further part whose tensor is one or more experts beside each other, which each rank
  /// of the experts of the part before it holds behind its own.
  bool behind = false;
  std::vector<Pad> pad = {};
  std::vector<Cut> cuts = {};
  std::optional<Expression> when = {};  ///< the rule, or the further part, is there only if not 0.
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
    std::optional<Expression> or_last = {};  ///< with `at`: if not 0, also the last coordinate.
    bool renumber = false;  ///< with `of`: in `name`, v counts from the first at its coordinate.
  };

  /// Exchanges two dimensions of the local tensor, at last, if `when` is not 0.
  struct Swap {
    int first = 0, second = 0;
    Expression when = 1;
  };

  std::vector<RulePart> with = {};
  std::string name;  ///< local name; empty: the canonical one. "$1" is what the first '*' or '#'
                     ///< matched, ... "{prefix}" is a text of the file.
  std::size_t number = 0;  ///< of its entry in the file, from 1; 0: as it lies in RuleSet::rules.
  /// The least number, and the first that is too large, that the first wildcard may match.
  std::optional<Expression> from = {}, below = {};
  /// The name of the tensor that the local one is made of, "$1" as in `name`, in the place of the
  /// one that matches; empty: that one.
  std::string of = {};
  std::string beside = {};     ///< applies only if the model has this tensor, "$1" as in `name`;
                               ///< empty: to all that match.
  std::optional<DType> dtype;  ///< of the local tensor, if it is a convertible one; else as it is.
  bool config_dtype = false;   ///< it has the dtype of the config, whatever the notation says.
  int stack = 0;               ///< the dimension along which parts follow each other.
  /// The cuts of the first part cut the whole tensor, after its parts are stacked; further parts
  /// have none. False: each part is cut by itself.
  bool together = false;
  /// With `together`: the parts alternate along `stack`. Each has as many units, and the whole is
  /// the first unit of each part, then the second of each, ...
  std::optional<Expression> interleave = {};
  std::optional<Expression> reverse = {};  ///< the last part is the first, if not 0.
  std::optional<Swap> swap = {};
  std::vector<int> merged = {};  ///< dimensions k that the module has as one with k + 1.
  ValueMap map = ValueMap::identity;
  bool omit = false;  ///< the tensors are left out on purpose.
  std::vector<Where> where;

  std::size_t num_parts() const { return 1 + with.size(); }
  const RulePart& part(std::size_t i) const { return i == 0 ? *this : with[i - 1]; }
};

/// A rules file: mesh axes, fastest first, and rules; or a layout card. A tensor belongs to the
/// first part of the first rule that matches it.
struct RuleSet {
  /// A key of the notation that is no axis: a number, one of `words` or, of experts, a file.
  struct Key {
    std::string name;
    Index otherwise = 1;  ///< its value if the notation is silent.
    /// The first is the default. Expressions have the index of the word, and "w13.up_first", which
    /// is 1 for that word and else 0.
    std::vector<std::string> words = {};
    std::vector<std::string> texts = {};  ///< of each word, which "{name}" in names stands for.
    bool file = false;                    ///< its number is 1 if the notation has the key.
  };
  struct Requirement {
    Expression that;   ///< of keys, axes that are keys, and the config: must not be 0.
    std::string says;  ///< the error; "{tp / dp}" is the number, "{architecture}" the class.
    bool unsupported = false;  ///< Code::unsupported, not Code::invalid_argument.
  };
  /// A number that expressions may use, of keys, axes that are keys, and the config. The first of a
  /// name counts.
  struct Number {
    std::string name;
    Expression is;
  };
  /// A text that "{name}" in names stands for. The first of a name counts.
  struct Text {
    std::string name, is;
  };
  /// The beginning of names that rules "in" it share. A rule in several is one in each.
  struct Block {
    std::string name;  ///< what rules call it; several have one name.
    Rule common;       ///< match, name, when, from, below and where.
  };
  /// Tensors of which the model has all or none at the same numbers, and those that it must have.
  struct Complete {
    /// Names, in which '#' is a number: all have equally many, at most kMaxCompleteNumbers.
    std::vector<std::string> patterns;
    bool any = false;  ///< one of the tensors is enough, of those that the model must have.
    /// Names without '#': the model must have them, if it is not 0.
    std::optional<Expression> must = {};
    /// The model must have the tensors at all last numbers below it, of the other numbers that any
    /// of them has; larger ones are not looked at.
    std::optional<Expression> of = {};
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
  std::vector<Number> let = {};
  std::vector<Text> texts = {};
  std::vector<Block> blocks = {};  ///< for rules of a card whose base this is.
  std::vector<Complete> complete = {};
  /// Floating-point tensors have the dtype of the config, unless the notation says another.
  bool config_dtype = false;
};

}  // namespace reshard
