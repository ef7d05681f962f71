// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "reshard/base/result.h"
#include "reshard/model/families/rules.h"

/// Rules files: how the tensors of any model are cut, as JSON. docs/rules.md describes every key.
namespace reshard {

/// Most rules of a file, and most characters of a pattern or name in it.
inline constexpr std::size_t kMaxRules = 4096;
inline constexpr std::size_t kMaxRulePattern = 512;
/// Most '*' and '#' of one pattern.
inline constexpr int kMaxWildcards = 4;

/// How many '*' and '#' a pattern has.
int count_wildcards(std::string_view pattern);
/// Error, beginning with `where`, when "$N" in a local name refers to a wildcard that `match` does
/// not have.
Result<> check_local_name(std::string_view name, std::string_view match, std::string_view where);

/// The rules in `text`. Whatever a rule names is checked here: axes exist, no axis cuts two
/// dimensions of a tensor or both cuts and pins it, "$N" and "number" refer to wildcards that there
/// are. Errors are Code::corrupt, say which rule (from 1) and which key, and do not name the file.
Result<RuleSet> parse_rules(std::string_view text);

/// parse_rules of a file of at most 16 MiB; errors begin with its path.
Result<RuleSet> read_rules(const std::string& path);

}  // namespace reshard
