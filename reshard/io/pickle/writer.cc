// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/pickle/writer.h"

#include <algorithm>
#include <limits>

namespace reshard::pickle {

Writer::Writer() : out_("\x80\x02") {}

void Writer::number(std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out_ += static_cast<char>(value >> (8 * i) & 0xffU);
}

void Writer::integer(std::int64_t value) {
  const auto bits = static_cast<std::uint64_t>(value);
  if (value >= 0 && value < 256) {
    out_ += 'K';
    number(bits, 1);
  } else if (value >= std::numeric_limits<std::int32_t>::min() &&
             value <= std::numeric_limits<std::int32_t>::max()) {
    out_ += 'J';
    number(bits, 4);
  } else {
    out_ += "\x8a\x08";
    number(bits, 8);
  }
}

void Writer::text(std::string_view text) {
  out_ += 'X';
  number(text.size(), 4);
  out_ += text;
}

void Writer::global(Name name) {
  const auto known = std::find(known_.begin(), known_.end(), name);
  const auto place = static_cast<std::uint64_t>(known - known_.begin());
  if (known != known_.end()) {
    out_ += 'h';
    number(place, 1);
    return;
  }
  (out_ += 'c').append(name.module) += '\n';
  out_.append(name.name) += '\n';
  if (place > 0xff) return;  // few pickles name as many
  out_ += 'q';
  number(place, 1);
  known_.push_back(name);
}

void Writer::begin_object(Name name) {
  global(name);
  out_ += ")\x81";
}

std::string Writer::finish() && {
  out_ += '.';
  return std::move(out_);
}

}  // namespace reshard::pickle
