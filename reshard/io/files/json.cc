// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/files/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>

#include "reshard/io/files/disk.h"
#include "reshard/io/files/mapped_file.h"
#include "reshard/io/files/non_finite.h"
#include "reshard/io/files/utf8.h"

namespace reshard {
namespace {

constexpr std::size_t kMessageText = 100;

std::vector<std::string_view> keys_of(const Json& object) {
  std::vector<std::string_view> keys;
  for (const auto& member : *object.object()) keys.push_back(member.key);
  return keys;
}

/// The first of the keys that is there twice; none if each is there once. Sorts, because a hostile
/// object may have millions.
std::optional<std::string> find_twice(std::vector<std::string_view> keys) {
  std::ranges::sort(keys);
  const auto twice = std::ranges::adjacent_find(keys);
  return twice == keys.end() ? std::nullopt : std::optional<std::string>(*twice);
}

/// "[json.exception.parse_error.101] parse error at line 1, column 2: what" -> "what".
std::string_view cause(std::string_view what) {
  const auto column = what.find("column ");
  const auto colon = what.find(": ", column == what.npos ? 0 : column);
  return colon == what.npos ? what : what.substr(colon + 2);
}

/// For error messages: "line 3, column 5", counted from 1 and columns in bytes; of a text that is
/// one line, such as the header of a checkpoint, "byte 12", counted from 0.
std::string place_in(std::string_view text, std::size_t byte) {
  if (text.find('\n') == text.npos) return fmt::format("byte {}", byte);
  const std::string_view before = text.substr(0, byte);
  const auto line_begin = before.rfind('\n') + 1;  // npos + 1 is 0
  return fmt::format("line {}, column {}", 1 + std::ranges::count(before, '\n'),
                     before.size() - line_begin + 1);
}

/// Builds a Json from the parser's events; stops at the first violation.
class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  /// `text`: borrowed. `numbers`: those that it has strings in place of. `take`: gets the members
  /// of the root, which then stays empty; may be null.
  Builder(std::string_view text, const JsonLimits& limits, std::vector<files::NonFinite> numbers,
          const JsonMember* take)
      : text_(text), limits_(limits), numbers_(std::move(numbers)), take_(take) {}

  bool null() override { return add(Json()); }
  bool boolean(bool value) override { return add(Json(value)); }
  bool number_integer(std::int64_t value) override { return add(Json(value)); }
  bool number_unsigned(std::uint64_t value) override {
    const auto as_signed = static_cast<std::int64_t>(value);
    return as_signed >= 0 ? add(Json(as_signed)) : add(Json(value));
  }
  bool number_float(double, const std::string& spelling) override {
    return add(Json(Json::Number{spelling}));
  }
  bool string(std::string& value) override {
    if (const auto* number = number_in_place()) return add(Json(Json::Number{number->spelling}));
    return add(Json(std::move(value)));
  }
  bool binary(nlohmann::json::binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(Json(Json::Object{})); }
  bool start_array(std::size_t) override { return open(Json(Json::Array{})); }
  bool key(std::string& name) override {
    if (const auto* number = number_in_place())
      return stop(fmt::format("not JSON at {}: {} is no key", place_in(text_, number->byte),
                              number->spelling));
    keys_.push_back(std::move(name));
    return true;
  }
  bool end_object() override {
    const bool handed_on = take_ != nullptr && open_.size() == 1;
    if (const auto key =
            find_twice(handed_on ? std::vector<std::string_view>(taken_.begin(), taken_.end())
                                 : keys_of(open_.back())))
      return stop(fmt::format("key {} appears twice in one object", in_quotes(*key)));
    return close();
  }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception& error) override {
    std::string text(cause(error.what()));
    if (text.size() > 2 * kMessageText) text = files::cut_utf8(text, 2 * kMessageText) + "...";
    return stop(
        fmt::format("not JSON at {}: {}", place_in(text_, position == 0 ? 0 : position - 1), text));
  }

  Result<Json> take() && {
    if (!error_.empty()) return fail(Code::corrupt, std::move(error_));
    return std::move(root_);
  }

 private:
  bool stop(std::string message) {
    if (error_.empty()) error_ = std::move(message);
    return false;
  }
  /// The number that the string which was just read stands for, or null. Counts strings.
  const files::NonFinite* number_in_place() {
    const std::size_t string = num_strings_++;
    if (next_number_ == numbers_.size() || numbers_[next_number_].string != string) return nullptr;
    return &numbers_[next_number_++];
  }
  bool add(Json value) {
    if (++values_ > limits_.values)
      return stop(fmt::format("more than {} JSON values", limits_.values));
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (auto* array = open_.back().array()) {
      array->push_back(std::move(value));
    } else {
      std::string key = std::move(keys_.back());
      keys_.pop_back();
      if (take_ != nullptr && open_.size() == 1)
        hand_on(std::move(key), std::move(value));
      else
        open_.back().object()->push_back({std::move(key), std::move(value)});
    }
    return true;
  }
  void hand_on(std::string key, Json value) {
    taken_.push_back(key);
    (*take_)(std::move(key), std::move(value));
  }
  bool open(Json value) {
    if (open_.size() >= static_cast<std::size_t>(limits_.depth))
      return stop(fmt::format("JSON nested deeper than {} levels", limits_.depth));
    open_.push_back(std::move(value));
    return true;
  }
  bool close() {
    Json value = std::move(open_.back());
    open_.pop_back();
    return add(std::move(value));
  }

  std::string_view text_;
  JsonLimits limits_;
  std::vector<files::NonFinite> numbers_;
  std::size_t next_number_ = 0, num_strings_ = 0;
  Json root_;
  std::vector<Json> open_;
  std::vector<std::string> keys_;
  std::size_t values_ = 0;
  std::string error_;
  const JsonMember* take_;
  std::vector<std::string> taken_;  ///< the keys of the members that were handed on.
};

/// Prints the items of a list or object: one per line if pretty, else on one line.
template <class Items, class WriteItem>
void write_items(const Items& items, const char* brackets, bool pretty, int level, std::string& out,
                 WriteItem&& write_item) {
  out += brackets[0];
  bool first = true;
  for (const auto& item : items) {
    if (!first) out += pretty ? "," : ", ";
    if (pretty) out.append(1, '\n').append(2 * static_cast<std::size_t>(level + 1), ' ');
    write_item(item);
    first = false;
  }
  if (pretty && !first) out.append(1, '\n').append(2 * static_cast<std::size_t>(level), ' ');
  out += brackets[1];
}

/// The value or, with `take`, nothing: its members were handed on.
Result<Json> parse(std::string_view text, const JsonLimits& limits, const JsonMember* take) {
  if (text.size() > limits.bytes)
    return fail(Code::corrupt, fmt::format("{} bytes of JSON, more than the {} allowed",
                                           text.size(), limits.bytes));
  if (const auto at = files::find_invalid_utf8(text))
    return fail(Code::corrupt, fmt::format("not UTF-8 at {}", place_in(text, *at)));
  // The parser would take a NUL for the end of the text and ignore the rest.
  if (const auto at = text.find('\0'); at != text.npos)
    return fail(Code::corrupt, fmt::format("not JSON at {}: a NUL byte", place_in(text, at)));
  std::string copy;
  auto numbers =
      limits.non_finite ? files::replace_non_finite(text, copy) : std::vector<files::NonFinite>();
  if (!numbers.empty()) text = copy;
  Builder builder(text, limits, std::move(numbers), take);
  nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
  return std::move(builder).take();
}

}  // namespace

std::optional<double> Json::number() const {
  if (const auto* i = std::get_if<std::int64_t>(&value_)) return static_cast<double>(*i);
  if (const auto* u = std::get_if<std::uint64_t>(&value_)) return static_cast<double>(*u);
  const auto* n = std::get_if<Number>(&value_);
  if (n == nullptr) return std::nullopt;
  double value = 0;
  const char* end = n->spelling.data() + n->spelling.size();
  const auto [stop, error] = std::from_chars(n->spelling.data(), end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

std::optional<std::int64_t> Json::integer() const {
  const auto* value = std::get_if<std::int64_t>(&value_);
  return value ? std::optional(*value) : std::nullopt;
}

const Json* Json::find(std::string_view key) const {
  if (const auto* members = object())
    for (const auto& member : *members)
      if (member.key == key) return &member.value;
  return nullptr;
}

std::string Json::dump(bool pretty) const {
  std::string out;
  struct Writer {
    std::string& out;
    bool pretty;
    int level;
    void operator()(std::monostate) const { out += "null"; }
    void operator()(bool value) const { out += value ? "true" : "false"; }
    void operator()(std::int64_t value) const { out += std::to_string(value); }
    void operator()(std::uint64_t value) const { out += std::to_string(value); }
    void operator()(const Number& value) const { out += value.spelling; }
    void operator()(const std::string& value) const { out += json_quote(value); }
    void operator()(const Array& values) const {
      write_items(values, "[]", pretty, level, out, [this](const Json& value) {
        std::visit(Writer{out, pretty, level + 1}, value.value_);
      });
    }
    void operator()(const Object& members) const {
      write_items(members, "{}", pretty, level, out, [this](const Member& member) {
        out += json_quote(member.key);
        out += ": ";
        std::visit(Writer{out, pretty, level + 1}, member.value.value_);
      });
    }
  };
  std::visit(Writer{out, pretty, 0}, value_);
  return out;
}

std::string Json::describe() const {
  if (object()) return "an object";
  if (array()) return "a list";
  if (const auto* text = string()) return in_quotes(*text);
  std::string text = dump();
  return text.size() <= kMessageText ? text : text.substr(0, kMessageText) + "...";
}

Result<Json> parse_json(std::string_view text, const JsonLimits& limits) {
  return parse(text, limits, nullptr);
}

Result<> parse_json_members(std::string_view text, const JsonLimits& limits,
                            const JsonMember& take) {
  const Json rest = RESHARD_TRY(parse(text, limits, &take));
  if (rest.object() == nullptr)
    return fail(Code::corrupt, fmt::format("must be an object, is {}", rest.describe()));
  return {};
}

Result<std::string> read_text_file(const std::string& path, std::size_t max_bytes) {
  const auto file = RESHARD_TRY(MappedFile::open(path));
  if (static_cast<std::size_t>(file.size()) > max_bytes)
    return fail(Code::corrupt,
                fmt::format("{}: {} bytes, more than the {} that such a file may have", path,
                            file.size(), max_bytes));
  const auto bytes = file.bytes();
  std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  RESHARD_TRY(file.unchanged());
  return text;
}

Result<> write_new_text_file(const std::string& path, std::string_view text) {
  return files::write_text_file(path, text);
}

std::string json_quote(std::string_view text) {
  // Names of tensors, of which a header has many.
  const bool plain = std::ranges::all_of(
      text, [](char c) { return c >= ' ' && c <= '~' && c != '"' && c != '\\'; });
  if (plain) return fmt::format("\"{}\"", text);
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string in_quotes(std::string_view text) {
  if (text.size() <= kMessageText) return json_quote(text);
  return json_quote(files::cut_utf8(text, kMessageText)) + "...";
}

std::string as_word(std::string_view text) {
  const auto is_plain = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
  };
  const bool word =
      !text.empty() && text.size() <= kMessageText && std::ranges::all_of(text, is_plain);
  return word ? std::string(text) : in_quotes(text);
}

std::string is_what(const Json* value) { return value ? "is " + value->describe() : "is missing"; }

}  // namespace reshard
