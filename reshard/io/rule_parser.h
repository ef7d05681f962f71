// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/io/files/json_fields.h"
#include "reshard/model/families/rules.h"

namespace reshard::io {

/// True if a text can stand in a message, which is one line.
bool is_one_line(std::string_view text);
/// A string without control characters.
Result<std::string> line(const files::Fields& fields, std::string_view key);
/// A number, or an expression.
Result<Expression> expression(const files::Fields& fields, std::string_view key, Index least);
/// A list of numbers or expressions; empty without the key.
Result<std::vector<Expression>> expressions(const files::Fields& fields, std::string_view key,
                                            std::size_t most);
Result<std::optional<Expression>> expression_if(const files::Fields& fields, std::string_view key,
                                                Index least);

/// Parses one rule and checks that its parts are consistent.
class RuleParser {
 public:
  /// Borrows both. `block`: the beginning of the rule's names, or null.
  RuleParser(const files::Fields& fields, const std::vector<RuleSet::MeshAxis>& axes,
             const RuleSet::Block* block = nullptr)
      : fields_(fields), axes_(axes), block_(block) {}

  Result<Rule> parse();
  /// Only what a block may have: match, name, when, from, below and where.
  Result<Rule> parse_block();

  /// The fields of a rule in a file.
  static Result<files::Fields> fields_of(const Json& json, std::string where);

 private:
  static int left_in(const RulePart& part);
  Result<> read_texts();
  Result<> read_values();
  Result<> check_parts() const;
  Result<> check_further(const RulePart& part, std::size_t at) const;
  Result<> read_part(const files::Fields& fields, RulePart& part);
  Result<> add_take(const files::Fields& of, const Json& json, RulePart& part) const;
  Result<> add_pad(const files::Fields& of, const Json& json, RulePart& part) const;
  Result<> add_cut(const files::Fields& of, const Json& json, RulePart& part);
  Result<> use_axis(const std::string& name, const std::string& where, bool once = true);
  Result<> add_where(const Json& json);
  Result<> add_swap();
  Result<> read_place();

  const files::Fields& fields_;
  const std::vector<RuleSet::MeshAxis>& axes_;
  const RuleSet::Block* block_;
  Rule rule_;
  int wildcards_ = 0;           ///< those that the name and `where` may use.
  std::set<std::string> used_;  ///< axes of this part.
  std::set<std::string> cut_;   ///< axes of all parts.
  std::set<int> dims_;
};

}  // namespace reshard::io
