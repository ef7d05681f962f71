// SPDX-License-Identifier: Apache-2.0
//
// A pickle is a program for a machine with a stack, a memo and marks. This machine runs only the
// instructions that build data. Those that would call something record the call instead, if what
// they call is known, and are refused by name if not. Each instruction adds at most one value, so
// that time and memory are proportional to the pickle.
#include "reshard/io/pickle/unpickle.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <optional>

#include "reshard/io/files/json.h"

namespace reshard::pickle {
namespace {

/// Values that need no place of their own.
constexpr Ref kNone = 0, kFalse = 1, kTrue = 2;

// The instructions, by the names in Python's pickletools.
enum Opcode : std::uint8_t {
  op_mark = '(',
  op_stop = '.',
  op_pop = '0',
  op_pop_mark = '1',
  op_dup = '2',
  op_float = 'F',
  op_int = 'I',
  op_binint = 'J',
  op_binint1 = 'K',
  op_long = 'L',
  op_binint2 = 'M',
  op_none = 'N',
  op_persid = 'P',
  op_binpersid = 'Q',
  op_reduce = 'R',
  op_string = 'S',
  op_binstring = 'T',
  op_short_binstring = 'U',
  op_unicode = 'V',
  op_binunicode = 'X',
  op_append = 'a',
  op_build = 'b',
  op_global = 'c',
  op_dict = 'd',
  op_empty_dict = '}',
  op_appends = 'e',
  op_get = 'g',
  op_binget = 'h',
  op_inst = 'i',
  op_long_binget = 'j',
  op_list = 'l',
  op_empty_list = ']',
  op_obj = 'o',
  op_put = 'p',
  op_binput = 'q',
  op_long_binput = 'r',
  op_setitem = 's',
  op_tuple = 't',
  op_empty_tuple = ')',
  op_setitems = 'u',
  op_binfloat = 'G',
  op_binbytes = 'B',
  op_short_binbytes = 'C',
  op_proto = 0x80,
  op_newobj = 0x81,
  op_ext1 = 0x82,
  op_ext2 = 0x83,
  op_ext4 = 0x84,
  op_tuple1 = 0x85,
  op_tuple2 = 0x86,
  op_tuple3 = 0x87,
  op_newtrue = 0x88,
  op_newfalse = 0x89,
  op_long1 = 0x8a,
  op_long4 = 0x8b,
  op_short_binunicode = 0x8c,
  op_binunicode8 = 0x8d,
  op_binbytes8 = 0x8e,
  op_empty_set = 0x8f,
  op_additems = 0x90,
  op_frozenset = 0x91,
  op_newobj_ex = 0x92,
  op_stack_global = 0x93,
  op_memoize = 0x94,
  op_frame = 0x95,
  op_bytearray8 = 0x96,
  op_next_buffer = 0x97,
  op_readonly_buffer = 0x98,
};

constexpr std::uint64_t kMaxProtocol = 5;
constexpr std::size_t kMaxName = 1000;

}  // namespace

constexpr Name kGetattr{"builtins", "getattr"};

class Machine {
 public:
  Machine(std::span<const std::byte> bytes, const Rules& rules) : bytes_(bytes), rules_(rules) {
    document_.values_.push_back({});
    document_.values_.push_back({Kind::boolean, false});
    document_.values_.push_back({Kind::boolean, true});
  }

  Result<Document> run() {
    while (!stopped_ && error_.message.empty()) step();
    if (error_.message.empty() && at_ != bytes_.size())
      corrupt(fmt::format("{} bytes follow the end", bytes_.size() - at_));
    if (!error_.message.empty())
      return tl::unexpected(std::move(error_).in(fmt::format("byte {}", start_)));
    return std::move(document_);
  }

 private:
  // What was wrong first. After an error, values are None and the loop ends.
  void set_error(Code code, std::string message) {
    if (error_.message.empty()) error_ = Error{code, std::move(message)};
  }
  void corrupt(std::string message) { set_error(Code::corrupt, std::move(message)); }
  void refuse(std::string message) { set_error(Code::unsupported, std::move(message)); }

  // The bytes of the pickle.
  std::string_view take(std::uint64_t size) {
    if (size > bytes_.size() - at_) {
      corrupt(fmt::format("{} bytes of content, but {} are left", size, bytes_.size() - at_));
      return {};
    }
    const auto* text = reinterpret_cast<const char*>(bytes_.data()) + at_;
    at_ += static_cast<std::size_t>(size);
    return {text, static_cast<std::size_t>(size)};
  }
  std::uint64_t number(std::size_t bytes) {
    std::uint64_t value = 0;
    const std::string_view raw = take(bytes);
    for (std::size_t i = 0; i < raw.size(); ++i)
      value |= std::uint64_t{static_cast<unsigned char>(raw[i])} << (8 * i);
    return value;
  }
  std::string_view line() {
    const auto* text = reinterpret_cast<const char*>(bytes_.data());
    const std::string_view rest(text + at_, bytes_.size() - at_);
    const std::size_t end = rest.substr(0, kMaxName).find('\n');
    if (end == std::string_view::npos) {
      corrupt("a name without an end");
      return {};
    }
    at_ += end + 1;
    return rest.substr(0, end);
  }

  // The stack.
  void push(Ref r) {
    if (stack_.size() >= rules_.values) return corrupt("more values than are read");
    stack_.push_back(r);
  }
  void push(Kind kind, decltype(Value::content) content) {
    if (document_.values_.size() >= rules_.values) return corrupt("more values than are read");
    document_.values_.push_back({kind, std::move(content)});
    push(static_cast<Ref>(document_.values_.size() - 1));
  }
  std::size_t bottom() const { return marks_.empty() ? 0 : marks_.back(); }
  Ref pop() {
    if (stack_.size() <= bottom()) {
      corrupt("the stack is empty");
      return kNone;
    }
    const Ref r = stack_.back();
    stack_.pop_back();
    return r;
  }
  Ref top() {
    if (stack_.size() > bottom()) return stack_.back();
    corrupt("the stack is empty");
    return kNone;
  }
  std::vector<Ref> pop_to_mark() {
    if (marks_.empty()) {
      corrupt("no mark is open");
      return {};
    }
    const auto from = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<Ref> items(from, stack_.end());
    stack_.erase(from, stack_.end());
    marks_.pop_back();
    return items;
  }
  void mark() {
    if (marks_.size() >= rules_.depth) return corrupt("too deep");
    marks_.push_back(stack_.size());
  }
  void tuple(std::size_t n) {
    std::vector<Ref> items(n);
    for (std::size_t i = n; i > 0; --i) items[i - 1] = pop();
    push(Kind::tuple, std::move(items));
  }

  // The memo.
  void put(std::uint64_t place) {
    if (place >= rules_.values) return corrupt(fmt::format("place {} in the memo", place));
    if (place >= memo_.size()) memo_.resize(static_cast<std::size_t>(place) + 1);
    memo_[static_cast<std::size_t>(place)] = top();
  }
  void get(std::uint64_t place) {
    if (place >= memo_.size() || !memo_[static_cast<std::size_t>(place)])
      return corrupt(fmt::format("nothing at place {} in the memo", place));
    push(*memo_[static_cast<std::size_t>(place)]);
  }

  /// Extends what is on top of the stack.
  void extend(Kind kind, const std::vector<Ref>& items) {
    const Ref to = top();
    Value& value = document_.values_[to];
    if (value.kind != kind)
      return corrupt(fmt::format("items for {}, which takes none", document_.describe(to)));
    if (kind == Kind::dict && items.size() % 2 != 0) return corrupt("a key without a value");
    auto& into = std::get<std::vector<Ref>>(value.content);
    into.insert(into.end(), items.begin(), items.end());
  }

  void integer(std::size_t bytes) {
    const std::string_view raw = take(bytes);
    if (raw.size() > 8) return corrupt(fmt::format("a number of {} bytes", raw.size()));
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < raw.size(); ++i)
      value |= std::uint64_t{static_cast<unsigned char>(raw[i])} << (8 * i);
    if (!raw.empty() && raw.size() < 8 && (static_cast<unsigned char>(raw.back()) & 0x80U) != 0)
      value |= ~std::uint64_t{0} << (8 * raw.size());
    push(Kind::integer, static_cast<std::int64_t>(value));
  }
  void real() {
    std::uint64_t value = 0;
    for (const char c : take(8)) value = value << 8 | static_cast<unsigned char>(c);
    push(Kind::real, std::bit_cast<double>(value));
  }

  static std::string dotted(Name n) {
    return in_quotes(std::string(n.module).append(".").append(n.name));
  }
  void global(Name name) {
    if (!error_.message.empty()) return;
    const Name* at = std::find(rules_.known.data(), known_end(), name);
    if (name == kGetattr && !rules_.enums.empty()) at = &kGetattr;
    if (at == known_end())
      return refuse(
          fmt::format("wants {}, which is none of the classes that are known here", dotted(name)));
    auto there = std::find(document_.names_.begin(), document_.names_.end(), name);
    if (there == document_.names_.end()) {
      document_.names_.push_back(*at);  // not borrowed from the pickle
      there = document_.names_.end() - 1;
    }
    push(Kind::global, static_cast<std::int64_t>(there - document_.names_.begin()));
  }
  void stack_global() {
    const Ref name = pop(), module = pop();
    const auto *n = document_.text(name), *m = document_.text(module);
    if (n == nullptr || m == nullptr)
      return refuse(fmt::format("wants the class {} of {}", document_.describe(name),
                                document_.describe(module)));
    global({m->substr(0, kMaxName), n->substr(0, kMaxName)});
  }
  const Name* known_end() const { return rules_.known.data() + rules_.known.size(); }
  /// True for the arguments of getattr that name a member of an enum.
  bool is_member(Ref arguments) const {
    const auto items = document_.items(arguments);
    if (items.size() != 2 || document_.text(items[1]) == nullptr) return false;
    const Name of = document_.global(items[0]);
    return std::find(rules_.enums.begin(), rules_.enums.end(), of) != rules_.enums.end();
  }
  /// Records a call; nothing is called.
  void call(const char* how) {
    const Ref arguments = pop(), called = pop();
    if (document_[called].kind != Kind::global)
      return refuse(fmt::format("wants to call {} ({})", document_.describe(called), how));
    if (document_[arguments].kind != Kind::tuple)
      return corrupt(fmt::format("arguments of {} that are {}", document_.describe(called),
                                 document_.describe(arguments)));
    if (document_.global(called) == kGetattr && !is_member(arguments))
      return refuse("wants \"builtins.getattr\" of what is no enum");
    push(Kind::object, std::vector<Ref>{called, arguments});
  }
  void build() {
    const Ref state = pop(), object = top();
    Value& value = document_.values_[object];
    auto* items = std::get_if<std::vector<Ref>>(&value.content);
    if (value.kind != Kind::object || items->size() != 2)
      return refuse(
          fmt::format("wants to set the state of {} (BUILD)", document_.describe(object)));
    items->push_back(state);
  }
  void persistent() {
    const Ref id = pop();
    if (!rules_.persistent)
      return refuse(
          fmt::format("wants the object of persistent id {} (BINPERSID)", document_.describe(id)));
    push(Kind::persistent, std::vector<Ref>{id});
  }
  void refuse_object() {
    const std::vector<Ref> items = pop_to_mark();
    refuse(fmt::format("wants to call {} (OBJ)",
                       items.empty() ? "nothing" : document_.describe(items[0])));
  }
  void refuse_new_object() {
    const Ref named = pop(), positional = pop(), made = pop();
    refuse(fmt::format("wants to call {} with {} and {} (NEWOBJ_EX)", document_.describe(made),
                       document_.describe(positional), document_.describe(named)));
  }
  void refuse_instance() {
    const std::string_view module = line(), name = line();
    if (error_.message.empty())
      refuse(fmt::format("wants to call {} (INST)", dotted({module, name})));
  }
  void refuse_extension(std::size_t bytes) {
    const std::uint64_t code = number(bytes);
    refuse(fmt::format("wants extension {} of copyreg's registry (EXT{})", code, bytes));
  }
  void refuse_id() {
    const std::string_view id = line();
    if (error_.message.empty())
      refuse(fmt::format("wants the object of persistent id {} (PERSID)", in_quotes(id)));
  }

  void step() {
    start_ = at_;
    const auto opcode = static_cast<std::uint8_t>(number(1));
    if (!error_.message.empty()) {
      error_.message = "the pickle ends before its end is said";
      return;
    }
    if (!literal(opcode) && !container(opcode) && !calling(opcode))
      corrupt(fmt::format("instruction 0x{:02x}, which protocols 2 to 5 do not write", opcode));
  }

  bool literal(std::uint8_t opcode) {
    switch (opcode) {
      case op_none: push(kNone); return true;
      case op_newtrue: push(kTrue); return true;
      case op_newfalse: push(kFalse); return true;
      case op_binint: integer(4); return true;
      case op_binint1: push(Kind::integer, static_cast<std::int64_t>(number(1))); return true;
      case op_binint2: push(Kind::integer, static_cast<std::int64_t>(number(2))); return true;
      case op_long1: integer(static_cast<std::size_t>(number(1))); return true;
      case op_long4: integer(static_cast<std::size_t>(number(4))); return true;
      case op_binfloat: real(); return true;
      case op_short_binunicode: push(Kind::text, take(number(1))); return true;
      case op_binunicode: push(Kind::text, take(number(4))); return true;
      case op_binunicode8: push(Kind::text, take(number(8))); return true;
      case op_short_binbytes: push(Kind::bytes, take(number(1))); return true;
      case op_binbytes: push(Kind::bytes, take(number(4))); return true;
      case op_binbytes8:
      case op_bytearray8: push(Kind::bytes, take(number(8))); return true;
      case op_proto:
        if (number(1) > kMaxProtocol) corrupt("a protocol above 5");
        return true;
      case op_frame:
        if (number(8) > bytes_.size() - at_) corrupt("a frame beyond the end");
        return true;
      case op_stop:
        document_.root_ = pop();
        stopped_ = true;
        if (!stack_.empty() || !marks_.empty()) corrupt("values are left at the end");
        return true;
      default: return false;
    }
  }

  bool container(std::uint8_t opcode) {
    switch (opcode) {
      case op_mark: mark(); return true;
      case op_pop: pop(); return true;
      case op_pop_mark: pop_to_mark(); return true;
      case op_dup: push(top()); return true;
      case op_empty_tuple: tuple(0); return true;
      case op_tuple1: tuple(1); return true;
      case op_tuple2: tuple(2); return true;
      case op_tuple3: tuple(3); return true;
      case op_tuple: push(Kind::tuple, pop_to_mark()); return true;
      case op_empty_list: push(Kind::list, std::vector<Ref>()); return true;
      case op_list: push(Kind::list, pop_to_mark()); return true;
      case op_append: append(); return true;
      case op_appends: extend(Kind::list, pop_to_mark()); return true;
      case op_empty_dict: push(Kind::dict, std::vector<Ref>()); return true;
      case op_dict:
        push(Kind::dict, std::vector<Ref>());
        dict();
        return true;
      case op_setitem: set_item(); return true;
      case op_setitems: extend(Kind::dict, pop_to_mark()); return true;
      case op_binget: get(number(1)); return true;
      case op_long_binget: get(number(4)); return true;
      case op_binput: put(number(1)); return true;
      case op_long_binput: put(number(4)); return true;
      case op_memoize: put(memo_.size()); return true;
      default: return false;
    }
  }
  void append() {
    const Ref item = pop();
    extend(Kind::list, {item});
  }
  void set_item() {
    const Ref value = pop(), key = pop();
    extend(Kind::dict, {key, value});
  }
  /// The empty dict on top takes what lies under it, up to the mark.
  void dict() {
    const Ref made = pop();
    const std::vector<Ref> items = pop_to_mark();
    push(made);
    extend(Kind::dict, items);
  }

  bool calling(std::uint8_t opcode) {
    switch (opcode) {
      case op_global: {
        const std::string_view module = line(), name = line();
        global({module, name});
        return true;
      }
      case op_stack_global: stack_global(); return true;
      case op_reduce: call("REDUCE"); return true;
      case op_newobj: call("NEWOBJ"); return true;
      case op_build: build(); return true;
      case op_binpersid: persistent(); return true;
      case op_newobj_ex: refuse_new_object(); return true;
      case op_inst: refuse_instance(); return true;
      case op_obj: refuse_object(); return true;
      case op_ext1: refuse_extension(1); return true;
      case op_ext2: refuse_extension(2); return true;
      case op_ext4: refuse_extension(4); return true;
      case op_persid: refuse_id(); return true;
      default: return false;
    }
  }

  std::span<const std::byte> bytes_;
  const Rules& rules_;
  Document document_;
  std::vector<Ref> stack_;
  std::vector<std::size_t> marks_;
  std::vector<std::optional<Ref>> memo_;
  std::size_t at_ = 0, start_ = 0;
  bool stopped_ = false;
  Error error_;
};

Result<Document> unpickle(std::span<const std::byte> bytes, const Rules& rules) {
  return Machine(bytes, rules).run();
}

}  // namespace reshard::pickle
