// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/program/program.h"

namespace reshard {

/// The version of the serialised form, which is its first number after the magic.
inline constexpr std::uint64_t kProgramVersion = 1;

/// A program as bytes, 10 to 20 for each piece and step. The same program gives the same bytes in
/// every process and on every machine. docs/program.md describes the form.
/// @pre first_wait has steps + 1 entries, ascending, the first 0 and the last the number of waits
std::vector<std::byte> serialise(const Program& program);

/// The inverse of serialise(), for untrusted bytes: no table gets more entries than the bytes that
/// are left could hold. A result passes check_structure(), and serialises to the same bytes.
/// Errors: Code::corrupt, with the byte (counted from 0) at which the form
/// is violated; Code::unsupported: another version.
Result<Program> parse_program(std::span<const std::byte> bytes);

/// A digest (XXH3, 64 bits) of the serialised form: that of equal programs is equal in every
/// process and on every machine. Not a defence against an adversary. @pre as serialise()
std::uint64_t digest(const Program& program);

/// The digest of a program whose serialised form is `bytes`.
std::uint64_t digest_of_serialised(std::span<const std::byte> bytes);

}  // namespace reshard
