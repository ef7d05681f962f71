// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "reshard/io/files/json.h"
#include "reshard/io/pickle/unpickle.h"

namespace reshard::pickle {

const std::string_view* Document::text(Ref r) const {
  return values_[r].kind == Kind::text ? std::get_if<std::string_view>(&values_[r].content)
                                       : nullptr;
}

std::span<const Ref> Document::items(Ref r) const {
  const auto* items = std::get_if<std::vector<Ref>>(&values_[r].content);
  return items == nullptr ? std::span<const Ref>() : std::span<const Ref>(*items);
}

const std::vector<Ref>* Document::sequence(Ref r) const {
  const Kind kind = values_[r].kind;
  return kind == Kind::tuple || kind == Kind::list
             ? std::get_if<std::vector<Ref>>(&values_[r].content)
             : nullptr;
}

Name Document::global(Ref r) const {
  if (values_[r].kind != Kind::global) return {};
  return names_[static_cast<std::size_t>(*integer(r))];
}

Name Document::made_by(Ref r) const {
  return values_[r].kind == Kind::object ? global(items(r)[0]) : Name{};
}

const Ref* Document::find(Ref dict, std::string_view key) const {
  if (values_[dict].kind != Kind::dict) return nullptr;
  const auto entries = items(dict);
  for (std::size_t i = entries.size(); i >= 2; i -= 2)  // the last one counts
    if (const auto* text = this->text(entries[i - 2]); text != nullptr && *text == key)
      return &entries[i - 1];
  return nullptr;
}

const Ref* Document::attribute(Ref object, std::string_view name) const {
  if (values_[object].kind != Kind::object || items(object).size() < 3) return nullptr;
  return find(items(object)[2], name);
}

std::string Document::describe(Ref r) const {
  const auto dotted = [](Name n) {
    return in_quotes(std::string(n.module).append(".").append(n.name));
  };
  switch (values_[r].kind) {
    case Kind::none: return "None";
    case Kind::boolean: return std::get<bool>(values_[r].content) ? "True" : "False";
    case Kind::integer: return fmt::format("the number {}", *integer(r));
    case Kind::real: return "a float";
    case Kind::text: return fmt::format("the text {}", in_quotes(*text(r)));
    case Kind::bytes: return "bytes";
    case Kind::tuple: return fmt::format("a tuple of {}", items(r).size());
    case Kind::list: return fmt::format("a list of {}", items(r).size());
    case Kind::dict: return "a dict";
    case Kind::global: return dotted(global(r));
    case Kind::object: return fmt::format("an object of {}", dotted(made_by(r)));
    case Kind::persistent: return "a persistent id";
  }
  return "";
}

}  // namespace reshard::pickle
