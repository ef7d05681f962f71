// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reshard/io/pickle/unpickle.h"

namespace reshard::pickle {

/// Writes a pickle of protocol 2, value by value, for Python to load. Containers are written as
/// their begin, their items, and their end. The same calls give the same bytes.
class Writer {
 public:
  Writer();
  void none() { out_ += 'N'; }
  void boolean(bool value) { out_ += value ? '\x88' : '\x89'; }
  void integer(std::int64_t value);
  /// @pre `text` is UTF-8 of less than 4 GiB
  void text(std::string_view text);
  /// A class or function. Borrows the name's texts.
  void global(Name name);
  void begin_tuple() { out_ += '('; }
  void end_tuple() { out_ += 't'; }
  void begin_list() { out_ += "]("; }
  void end_list() { out_ += 'e'; }
  /// Then keys and values in turn.
  void begin_dict() { out_ += "}("; }
  void end_dict() { out_ += 'u'; }
  /// An object without arguments; its state is the next value, before end_object().
  void begin_object(Name name);
  void end_object() { out_ += 'b'; }
  /// A call of `name` with the tuple that is the next value, before end_call().
  void begin_call(Name name) { global(name); }
  void end_call() { out_ += 'R'; }
  /// A reference to an object stored elsewhere, whose persistent id is the last value.
  void persistent() { out_ += 'Q'; }
  std::string finish() &&;

 private:
  void number(std::uint64_t value, int bytes);
  std::string out_;
  std::vector<Name> known_;  ///< by their place in the memo.
};

}  // namespace reshard::pickle
