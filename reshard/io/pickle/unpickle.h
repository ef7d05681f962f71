// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "reshard/base/result.h"

/// Reads Python pickles of protocols 2 to 5 as data. Nothing is imported, called or built: a class
/// is its name, an object what was said about it.
namespace reshard::pickle {

/// The place of a value in Document::values.
using Ref = std::uint32_t;

enum class Kind : std::uint8_t {
  none,
  boolean,
  integer,
  real,
  text,
  bytes,
  tuple,       ///< items.
  list,        ///< items.
  dict,        ///< items: key, value, key, value, ...
  global,      ///< a class or function: name().
  object,      ///< items: class or function, tuple of arguments, and the state if there is one.
  persistent,  ///< items: what the writer gave as the id of something stored elsewhere.
};

struct Value {
  Kind kind = Kind::none;
  std::variant<std::monostate, bool, std::int64_t, double, std::string_view, std::vector<Ref>>
      content;
};

/// The name of a class or function, such as {"torch", "Size"}.
struct Name {
  std::string_view module, name;
  friend bool operator==(const Name&, const Name&) = default;
};

struct Rules {
  /// The classes and functions that may occur.
  std::span<const Name> known;
  /// The enums among `known`. Python before 3.11.4 writes a member of one as getattr(class,
  /// "NAME"), which is read as an object that builtins.getattr made; any other use of getattr is
  /// refused.
  std::span<const Name> enums = {};
  bool persistent = false;                    ///< whether persistent ids may occur.
  std::size_t values = std::size_t{1} << 24;  ///< the most that are read.
  std::size_t depth = std::size_t{1} << 12;   ///< the most marks that may be open at a time.
};

/// A pickle's content. Texts are borrowed from the pickle. Values may be shared, and lists, dicts
/// and objects may contain themselves: whoever walks them must know how deep.
class Document {
 public:
  const Value& operator[](Ref r) const { return values_[r]; }
  Ref root() const { return root_; }

  bool is_none(Ref r) const { return values_[r].kind == Kind::none; }
  /// The value if it is of that kind, or null.
  const std::int64_t* integer(Ref r) const {
    return std::get_if<std::int64_t>(&values_[r].content);
  }
  const std::string_view* text(Ref r) const;
  /// The items of a tuple, list, dict, object or persistent id; none of others.
  std::span<const Ref> items(Ref r) const;
  /// The items of a tuple or list, or null.
  const std::vector<Ref>* sequence(Ref r) const;
  /// The name of a global; {} for others.
  Name global(Ref r) const;
  /// The name of an object's class or function; {} for others.
  Name made_by(Ref r) const;
  /// The value of a text key in a dict, or null.
  const Ref* find(Ref dict, std::string_view key) const;
  /// The value of an attribute in an object's state, or null.
  const Ref* attribute(Ref object, std::string_view name) const;
  /// For error messages: "the number 3", "a torch.Size", "a dict".
  std::string describe(Ref r) const;

 private:
  friend class Machine;
  std::vector<Value> values_;
  std::vector<Name> names_;
  Ref root_ = 0;
};

/// Reads one pickle, which must fill `bytes`. Errors are Code::corrupt, or Code::unsupported for
/// a class or function that is not in `rules.known`, and for any other way to call something. They
/// name what the pickle wanted and the byte where it says so, but not the file.
Result<Document> unpickle(std::span<const std::byte> bytes, const Rules& rules);

}  // namespace reshard::pickle
