// SPDX-License-Identifier: Apache-2.0
#include "bench/common/arguments.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdio>

namespace reshard::bench {

Result<Arguments> Arguments::parse(int argc, const char* const* argv) {
  Arguments out;
  for (int i = 1; i < argc; i += 2) {
    const std::string key = argv[i];
    if (!key.starts_with("--") || i + 1 == argc)
      return fail(Code::invalid_argument, fmt::format("'{}': give pairs of --key value", key));
    if (!out.given_.emplace(key.substr(2), argv[i + 1]).second)
      return fail(Code::invalid_argument, fmt::format("{} is given twice", key));
  }
  return out;
}

std::string Arguments::text(const std::string& key, const std::string& otherwise) {
  asked_[key] = true;
  const auto found = given_.find(key);
  return found == given_.end() ? otherwise : found->second;
}

Result<Index> Arguments::integer(const std::string& key, Index otherwise) {
  const auto all = RESHARD_TRY(integers(key, std::to_string(otherwise)));
  if (all.size() != 1)
    return fail(Code::invalid_argument, fmt::format("--{} takes one whole number", key));
  return all[0];
}

Result<std::vector<Index>> Arguments::integers(const std::string& key, const std::string& otherwise,
                                               char separator) {
  auto all = whole_numbers(text(key, otherwise), separator);
  if (!all) return tl::unexpected(std::move(all).error().in("--" + key));
  return all;
}

Result<> Arguments::unused() const {
  for (const auto& [key, value] : given_)
    if (!asked_.contains(key))
      return fail(Code::invalid_argument, fmt::format("--{} is unknown here", key));
  return {};
}

Result<std::vector<Index>> whole_numbers(const std::string& text, char separator) {
  std::vector<Index> out;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (true) {
    Index value = -1;
    const auto [rest, error] = std::from_chars(at, end, value);
    if (error != std::errc{} || value < 0 || (rest != end && *rest != separator))
      return fail(Code::invalid_argument,
                  fmt::format("'{}' is not whole numbers between '{}'", text, separator));
    out.push_back(value);
    if (rest == end) return out;
    at = rest + 1;
  }
}

int run_program(int argc, const char* const* argv, Result<> (*body)(Arguments&)) {
  auto arguments = Arguments::parse(argc, argv);
  const Result<> done = arguments ? body(*arguments) : tl::unexpected(arguments.error());
  if (done) return 0;
  std::fprintf(stderr, "%s: %s\n", argv[0], done.error().message.c_str());
  return 1;
}

}  // namespace reshard::bench
