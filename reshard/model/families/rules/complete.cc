// SPDX-License-Identifier: Apache-2.0
// The numbers in a name that matches a pattern are one key of 64 bits, the last number in its
// lowest bits. Each pattern has a sorted list of the keys that the model has. The tensors of an
// entry are complete if their lists are equal or, with `of`, as long as they must be: keys are
// distinct. Only if an entry is not complete are the keys that it lacks enumerated.
#include "reshard/model/families/rules/complete.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "reshard/model/name_pattern.h"

namespace reshard::families {
namespace {

using Key = std::uint64_t;
using Keys = std::vector<Key>;

constexpr unsigned kBits = 20;  ///< of a number: layers and experts are fewer.
constexpr Index kMaxLast = (Index{1} << kBits) - 1;
/// The largest number of tensors that an entry which is not complete may ask for.
constexpr Index kMaxMissing = Index{1} << 22;
/// The largest number of comparisons of names with patterns, digits left out.
constexpr Index kMaxTries = Index{1} << 26;
static_assert(kMaxCompleteNumbers * kBits < 64);

Key last_of(Key key) { return key & static_cast<Key>(kMaxLast); }

/// True for a digit, and for the wildcard that stands for a run of digits.
bool in_run(char c) { return (c >= '0' && c <= '9') || c == '#'; }

/// A run of digits as a number; none if it has leading zeros or is too large.
std::optional<Key> key_number(std::string_view digits) {
  if (digits.size() > 7 || (digits.size() > 1 && digits[0] == '0')) return std::nullopt;
  Key number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return number <= static_cast<Key>(kMaxLast) ? std::optional(number) : std::nullopt;
}

/// A name without its digits, and the runs of these.
class SplitName {
 public:
  void split(std::string_view text) {
    skeleton.clear();
    runs.clear();
    std::size_t begin = 0;
    bool inside = false;
    for (std::size_t i = 0; i <= text.size(); ++i) {
      const bool digit = i < text.size() && in_run(text[i]);
      if (inside && !digit) runs.push_back(text.substr(begin, i - begin));
      if (digit && !inside) begin = i;
      if (i < text.size() && (!digit || !inside)) skeleton += digit ? '#' : text[i];
      inside = digit;
    }
  }

  std::string skeleton;
  std::vector<std::string_view> runs;  ///< of the text that was split, which must still be there.
};

/// The name that a pattern matches at these numbers.
std::string filled_at(std::string_view pattern, Key key) {
  std::string name;
  auto left = static_cast<unsigned>(std::ranges::count(pattern, '#'));
  for (const char c : pattern)
    if (c == '#')
      name += fmt::to_string(last_of(key >> (kBits * --left)));
    else
      name += c;
  return name;
}

/// A pattern of an entry, and the keys of the tensors that match it.
struct Member {
  std::string_view pattern;
  std::vector<std::string_view> runs;  ///< of digits, or "#".
  Keys keys = {};
  Keys lacking = {};  ///< of tensors that other entries miss.

  /// Adds a tensor of the same skeleton to `into`, if its numbers are those of the pattern.
  void take(const std::vector<std::string_view>& found, Keys& into) const {
    Key key = 0;
    for (std::size_t i = 0; i < runs.size(); ++i)
      if (runs[i] != "#") {
        if (runs[i] != found[i]) return;
      } else {
        const auto number = key_number(found[i]);
        if (!number) return;
        key = key << kBits | *number;
      }
    into.push_back(key);
  }
};

/// Collects missing tensors: the first one in the order of entries, and their number.
class Missing {
 public:
  Missing(const std::set<std::string>* may_lack, std::set<std::string>* lacked)
      : may_lack_(may_lack), lacked_(lacked) {}

  /// `instead`: another tensor that would do; may be empty.
  void add(std::string name, const std::string& instead = "") {
    if (is_left_out(name) || (!instead.empty() && is_left_out(instead))) return;
    if (names_.empty())
      first_ =
          instead.empty() ? fmt::format("'{}'", name) : fmt::format("'{}' or '{}'", name, instead);
    if (names_.insert(name).second) in_order_.push_back(std::move(name));
  }

  /// Those that were added, in this order.
  const std::vector<std::string>& in_order() const { return in_order_; }

  Result<> result() const {
    if (names_.empty()) return {};
    const std::size_t more = names_.size() - 1;
    const std::string others =
        more == 0 ? "" : fmt::format(", and {} more {}", more, more == 1 ? "is" : "are");
    return fail(Code::not_found,
                fmt::format("tensor {} is missing from the model{}", first_, others));
  }

 private:
  /// True if the tensor may be missing. Notes the patterns that name it.
  bool is_left_out(const std::string& name) const {
    if (may_lack_ == nullptr) return false;
    bool found = false;
    for (const std::string& pattern : *may_lack_) {
      if (!match_pattern(pattern, name)) continue;
      if (lacked_ != nullptr) lacked_->insert(pattern);
      found = true;
    }
    return found;
  }

  const std::set<std::string>* may_lack_;
  std::set<std::string>* lacked_;
  std::string first_;
  std::vector<std::string> in_order_;
  std::unordered_set<std::string> names_;  ///< one tensor may be missing from several entries.
};

/// An entry with the tensors of a model.
class Checked {
 public:
  explicit Checked(const RuleSet::Complete& entry) : entry_(entry) {
    for (const std::string& pattern : entry.patterns) members_.push_back({pattern, {}});
  }

  std::vector<Member>& members() { return members_; }
  Index num_numbers() const { return std::ranges::count(entry_.patterns[0], '#'); }

  Result<> check(const Expression::Lookup& numbers, Missing& missing) {
    for (Member& member : members_)
      if (!std::ranges::is_sorted(member.keys)) std::ranges::sort(member.keys);
    const Keys wanted = RESHARD_TRY(wanted_keys(numbers));
    RESHARD_TRY(check_number(static_cast<Index>(wanted.size())));
    for (const Key key : wanted) {
      const auto has = [&](const Member& m) { return std::ranges::binary_search(m.keys, key); };
      if (entry_.any && std::ranges::any_of(members_, has)) continue;
      if (entry_.any) {
        const bool others = members_.size() > 1;
        missing.add(filled_at(members_[0].pattern, key),
                    others ? filled_at(members_[1].pattern, key) : "");
        continue;
      }
      for (const Member& member : members_)
        if (!has(member)) missing.add(filled_at(member.pattern, key));
    }
    return {};
  }

 private:
  Result<> check_number(Index wanted) const {
    if (wanted <= kMaxMissing / static_cast<Index>(members_.size())) return {};
    return fail(Code::invalid_argument,
                fmt::format("tensors '{}' and others are missing from the model, of which {} are "
                            "asked for",
                            entry_.patterns[0], wanted));
  }

  /// The keys at which tensors must be; none if all are there.
  Result<Keys> wanted_keys(const Expression::Lookup& numbers) const {
    if (entry_.of) return numbered(numbers);
    const bool must = entry_.must && RESHARD_TRY(entry_.must->value(numbers)) != 0;
    const bool same = std::ranges::all_of(
        members_, [&](const Member& member) { return member.keys == members_[0].keys; });
    if (same && !must) return Keys{};
    Keys wanted = found();
    if (wanted.empty() && must) wanted.push_back(0);
    return wanted;
  }

  /// All keys that a member has, sorted.
  Keys found() const {
    Keys keys;
    for (const Member& member : members_)
      keys.insert(keys.end(), member.keys.begin(), member.keys.end());
    std::ranges::sort(keys);
    keys.erase(std::ranges::unique(keys).begin(), keys.end());
    return keys;
  }

  /// The keys whose last number is below `of`, for all other numbers that are there.
  Result<Keys> numbered(const Expression::Lookup& numbers) const {
    const Index count = RESHARD_TRY(entry_.of->value(numbers));
    if (count < 0 || count > kMaxLast)
      return fail(Code::invalid_argument, fmt::format("{} tensors '{}' are asked for, but at most "
                                                      "{} can be",
                                                      count, entry_.patterns[0], kMaxLast));
    Keys fronts = found();
    for (const Member& member : members_)
      fronts.insert(fronts.end(), member.lacking.begin(), member.lacking.end());
    for (Key& key : fronts) key >>= kBits;
    std::ranges::sort(fronts);
    fronts.erase(std::ranges::unique(fronts).begin(), fronts.end());
    if (num_numbers() == 1) fronts = {0};
    const auto full = static_cast<Index>(fronts.size()) * count;
    const auto has_all = [&](const Member& member) {
      return std::ranges::count_if(member.keys, [&](Key key) {
               return static_cast<Index>(last_of(key)) < count;
             }) == full;
    };
    if (!entry_.any && std::ranges::all_of(members_, has_all)) return Keys{};
    RESHARD_TRY(check_number(full));
    Keys wanted;
    wanted.reserve(static_cast<std::size_t>(full));
    for (const Key front : fronts)
      for (Index i = 0; i < count; ++i) wanted.push_back(front << kBits | static_cast<Key>(i));
    return wanted;
  }

  const RuleSet::Complete& entry_;
  std::vector<Member> members_;
};

/// All entries of a file with the tensors of a model.
class Completeness {
 public:
  explicit Completeness(const std::vector<RuleSet::Complete>& entries)
      : checked_(entries.begin(), entries.end()) {
    for (Checked& entry : checked_)
      for (Member& member : entry.members()) {
        split_.split(member.pattern);
        member.runs = split_.runs;
        by_skeleton_[split_.skeleton].push_back(&member);
      }
  }

  Result<> take(const ModelSpec& model) {
    Index tries = 0;
    for (const CanonicalTensor& tensor : model.tensors()) {
      const auto& members = members_of(tensor.name);
      tries += static_cast<Index>(members.size());
      if (tries > kMaxTries)
        return fail(Code::invalid_argument, "complete has too many patterns that differ in digits");
      for (Member* member : members) member->take(split_.runs, member->keys);
    }
    return {};
  }

  /// Names with more numbers come later: where the first expert of a layer is missing, the others
  /// are, too.
  Result<> check(const Expression::Lookup& numbers, Missing& missing) {
    std::vector<Checked*> order;
    for (Checked& entry : checked_) order.push_back(&entry);
    std::ranges::stable_sort(order, {}, [](const Checked* entry) { return entry->num_numbers(); });
    std::size_t known = 0;
    for (Checked* entry : order) {
      RESHARD_TRY(entry->check(numbers, missing));
      for (; known < missing.in_order().size(); ++known)
        for (Member* member : members_of(missing.in_order()[known]))
          member->take(split_.runs, member->lacking);
    }
    return {};
  }

 private:
  /// The patterns that differ from a name in digits only. Splits the name.
  const std::vector<Member*>& members_of(const std::string& name) {
    static const std::vector<Member*> kNone;
    split_.split(name);
    const auto same = by_skeleton_.find(split_.skeleton);
    return same == by_skeleton_.end() ? kNone : same->second;
  }

  std::vector<Checked> checked_;
  std::unordered_map<std::string, std::vector<Member*>> by_skeleton_;
  SplitName split_;
};

}  // namespace

Result<> check_complete(const std::vector<RuleSet::Complete>& entries, const ModelSpec& model,
                        const Expression::Lookup& numbers, const std::set<std::string>* may_lack,
                        std::set<std::string>* lacked) {
  if (entries.empty()) return {};
  Completeness of(entries);
  RESHARD_TRY(of.take(model));
  Missing missing(may_lack, lacked);
  RESHARD_TRY(of.check(numbers, missing));
  return missing.result();
}

}  // namespace reshard::families
