// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/files/posix_error.h"

#include <fmt/format.h>

#include <cerrno>
#include <system_error>

namespace reshard::files {
namespace {

std::string cause(int error_number) {
  switch (error_number) {
    case ENOENT: return "it does not exist";
    case EACCES:
    case EPERM: return "permission denied";
    case EROFS: return "the file system is read-only";
    case ENOSPC: return "the disk is full";
    case EDQUOT: return "the disk quota is used up";
    case EFBIG: return "the file would be larger than the system allows";
    case EMFILE:
    case ENFILE: return "too many files are open (see ulimit -n)";
    case EISDIR: return "it is a folder, not a file";
    case ENOTDIR: return "a part of the path is not a folder";
    case ENAMETOOLONG: return "the name is too long";
    default: return std::generic_category().message(error_number);
  }
}

}  // namespace

tl::unexpected<Error> posix_fail(std::string_view path, std::string_view action, int error_number) {
  return fail(error_number == ENOENT ? Code::not_found : Code::io,
              fmt::format("{}: cannot {}: {}", path, action, cause(error_number)));
}

}  // namespace reshard::files
