// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace reshard {

/// What a caller can do about an error. `name(code)` is its stable spelling.
enum class Code {
  invalid_argument,  ///< The request is wrong: change it.
  not_found,         ///< A file, tensor or name does not exist.
  corrupt,           ///< Input was read and is not what its format promises.
  unsupported,       ///< Right, but not something this build or version does.
  io,                ///< The operating system refused: disk, permission, memory.
  deadline,          ///< Time ran out.
  aborted,           ///< Another rank failed first, or the caller cancelled.
};

std::string_view name(Code code);

/// What was wrong, where, and what would be right; one line, no trailing full stop.
struct [[nodiscard]] Error {
  Code code = Code::invalid_argument;
  std::string message;

  /// The same error with "context: " put before its message.
  Error in(std::string_view context) &&;
};

template <class T = void>
using Result = tl::expected<T, Error>;

/// An error as a value that every Result<T> can be made of.
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

/// The value of a Result expression; on error returns that error from the enclosing function.
///   auto file = RESHARD_TRY(open(path));
///   RESHARD_TRY(check(file));
#define RESHARD_TRY(...)                                                                \
  __extension__({                                                                       \
    auto reshard_try_result = (__VA_ARGS__);                                            \
    if (!reshard_try_result)                                                            \
      return ::tl::unexpected<::reshard::Error>(std::move(reshard_try_result).error()); \
    ::reshard::detail::take(reshard_try_result);                                        \
  })
