// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "reshard/base/result.h"
#include "reshard/model/families/rules.h"

/// Rules files: how to cut the tensors of any model, as JSON. docs/rules.md describes every key.
namespace reshard {

/// The largest number of rules in a file, and of characters in a pattern or name.
inline constexpr std::size_t kMaxRules = 4096;
inline constexpr std::size_t kMaxRulePattern = 512;
/// The largest number of wildcards in one pattern.
inline constexpr int kMaxWildcards = 4;

/// The number of wildcards ('*' and '#') in a pattern.
int count_wildcards(std::string_view pattern);
/// Checks that every "$N" in a local name refers to one of the `wildcards` of `match`. Errors begin
/// with `where`.
Result<> check_local_name(std::string_view name, std::string_view match, int wildcards,
                          std::string_view where);

/// Parses axes and rules, and checks all references in rules: axes exist, no axis cuts two
/// dimensions of a tensor or both cuts and pins it, and "$N" and "number" refer to existing
/// wildcards. Errors are Code::corrupt and name the rule (counted from 1) and the key, but not the
/// file.
/// `base`: for a card that names one: rules that follow its own, and all else that it has.
Result<RuleSet> parse_rules(std::string_view text, const RuleSet* base = nullptr);

/// parse_rules() of a file of at most 16 MiB. Errors begin with its path.
Result<RuleSet> read_rules(const std::string& path);

/// read_rules() of a card that ships with the program, and of its base, bases/NAME.json beside it.
Result<RuleSet> read_card(const std::string& path);

}  // namespace reshard
