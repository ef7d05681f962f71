// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <fmt/format.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "reshard/base/check.h"
#include "reshard/base/file.h"
#include "reshard/transport/rendezvous.h"

namespace reshard {
namespace {

constexpr std::size_t kLeastCharacters = 16;
constexpr std::size_t kMaxCharacters = 4096;

}  // namespace

Secret Secret::random() {
  RESHARD_CHECK(sodium_init() >= 0);
  std::array<unsigned char, 32> bytes;
  randombytes_buf(bytes.data(), bytes.size());
  Secret secret;
  for (const unsigned char b : bytes) secret.text_ += fmt::format("{:02x}", b);
  sodium_memzero(bytes.data(), bytes.size());
  return secret;
}

Result<Secret> Secret::from_text(std::string_view text) {
  if (text.size() < kLeastCharacters || text.size() > kMaxCharacters) {
    return fail(Code::invalid_argument, fmt::format("a secret of {} characters: must be {} to {}",
                                                    text.size(), kLeastCharacters, kMaxCharacters));
  }
  Secret secret;
  secret.text_ = text;
  return secret;
}

Result<Secret> Secret::from_file(const std::string& path) {
  const auto system = [&](int error) {
    return fail(error == ENOENT ? Code::not_found : Code::io,
                fmt::format("secret file {}: {}", path, std::strerror(error)));
  };
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
  if (!file) return system(errno);
  struct stat about{};
  if (::fstat(file.get(), &about) != 0) return system(errno);
  if ((about.st_mode & 077) != 0) {
    return fail(
        Code::invalid_argument,
        fmt::format("secret file {}: accessible to others than its owner (mode {:04o}); chmod "
                    "600 it, and make a new secret if others may have read this one",
                    path, about.st_mode & 07777));
  }
  std::string text(kMaxCharacters + 1, '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const ssize_t n = ::read(file.get(), text.data() + size, text.size() - size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return system(errno);
    if (n == 0) break;
    size += static_cast<std::size_t>(n);
  }
  std::string_view line = std::string_view(text).substr(0, size);
  line = line.substr(0, line.find('\n'));
  if (line.ends_with('\r')) line.remove_suffix(1);
  auto secret = from_text(line);
  sodium_memzero(text.data(), text.size());
  if (!secret) return tl::unexpected(std::move(secret).error().in("secret file " + path));
  return secret;
}

}  // namespace reshard
