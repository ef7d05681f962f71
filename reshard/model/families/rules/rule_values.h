// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "reshard/model/families.h"
#include "reshard/model/families/error_list.h"
#include "reshard/model/families/rules.h"

namespace reshard::families {

/// The numbers and texts that rules may name: of the notation, the file and the model's config. Of
/// a card for a class that ModelConfig describes, the config's numbers are those of ModelConfig,
/// which has the defaults of the class.
class RuleValues {
 public:
  /// Borrows all three.
  RuleValues(const LayoutSpec& spec, const FamilyInput& input, const RuleSet& rules);

  /// Reads the keys of the file, then its `let`. Errors go into `wrong`.
  void read_keys(ErrorList& wrong);
  /// Reads the numbers of `let`. @pre the keys are read
  Result<> read_let();
  /// Adds an error for each requirement of the file that does not hold.
  void check(ErrorList& wrong) const;

  void set(const std::string& name, Index value) { numbers_[name] = value; }
  bool has(std::string_view name) const { return numbers_.contains(name); }
  Index at(const std::string& name) const { return numbers_.at(name); }
  std::optional<std::int64_t> number(std::string_view name) const;
  /// A name with the texts of the file in the place of "{text}". Errors: a text that it lacks.
  Result<std::string> named(std::string_view text) const;

  /// The dtype of the config, if values can be converted to it; none if it gives none.
  std::optional<DType> config_dtype() const { return config_dtype_; }

 private:
  void read_key(const RuleSet::Key& key, ErrorList& wrong);
  void add_config();
  Result<std::string> message(std::string_view text) const;

  const LayoutSpec& spec_;
  const FamilyInput& input_;
  const RuleSet& rules_;
  std::map<std::string, Index, std::less<>> numbers_;  ///< of axes, keys, `let` and ModelConfig.
  std::map<std::string, std::string, std::less<>> texts_;
  std::optional<DType> config_dtype_;
};

/// `text` with what `value` returns in the place of each "{...}". Errors: those of `value`; a brace
/// without its partner.
Result<std::string> filled(std::string_view text,
                           const std::function<Result<std::string>(std::string_view)>& value);

}  // namespace reshard::families
