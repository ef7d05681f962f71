// SPDX-License-Identifier: Apache-2.0
// Protects: bytes are refused with one error in one line, or they are a program that serialises to
// the same bytes.
#include <algorithm>
#include <cstdint>
#include <span>

#include "reshard/base/check.h"
#include "reshard/program/form/serialise.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace reshard;
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto program = parse_program(bytes);
  if (!program) {
    const auto& message = program.error().message;
    RESHARD_CHECK(message.starts_with("program: ") && message.find('\n') == message.npos);
    return 0;
  }
  RESHARD_CHECK(std::ranges::equal(serialise(*program), bytes));
  RESHARD_CHECK(digest(*program) == digest_of_serialised(bytes));
  return 0;
}
