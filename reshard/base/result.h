// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace reshard {

/// The kind of an error, by what a caller can do about it. `name(code)` is its stable name.
enum class Code {
  invalid_argument,  ///< The request is wrong: change it.
  not_found,         ///< A file, tensor or name does not exist.
  corrupt,           ///< Input violates its format.
  unsupported,       ///< Valid, but not supported by this build or version.
  io,                ///< The operating system reported an error: disk, permission, memory.
  deadline,          ///< The deadline passed.
  aborted,           ///< Another rank failed first, or the caller cancelled.
};

std::string_view name(Code code);

/// An error: what was wrong, where, and what would be right, in one line without a full stop.
struct [[nodiscard]] Error {
  Code code = Code::invalid_argument;
  std::string message;

  /// The same error with "context: " before its message.
  Error in(std::string_view context) &&;
};

template <class T = void>
using Result = tl::expected<T, Error>;

/// An error that converts to any Result<T>.
inline tl::unexpected<Error> fail(Code code, std::string message) {
  return tl::unexpected<Error>(Error{code, std::move(message)});
}

namespace detail {
template <class T>
T take(Result<T>& result) {
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}
}  // namespace detail

}  // namespace reshard

/// Evaluates to the value of a Result; on error returns the error from the enclosing function.
///   auto file = RESHARD_TRY(open(path));
///   RESHARD_TRY(check(file));
#define RESHARD_TRY(...)                                                                \
  __extension__({                                                                       \
    auto reshard_try_result = (__VA_ARGS__);                                            \
    if (!reshard_try_result)                                                            \
      return ::tl::unexpected<::reshard::Error>(std::move(reshard_try_result).error()); \
    ::reshard::detail::take(reshard_try_result);                                        \
  })
