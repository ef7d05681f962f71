// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/tcp/rendezvous_address.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <utility>

#include "reshard/base/file.h"
#include "reshard/transport/tcp/fd_socket.h"

namespace reshard::tcp {
namespace {

constexpr std::string_view kTitle = "reshard rendezvous 1";
constexpr std::size_t kMaxFileBytes = 65536;
constexpr std::size_t kMaxAddresses = 256;
constexpr int kMaxPort = 65535;

std::optional<int> port_number(std::string_view text) {
  int port = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (failed != std::errc() || end != text.data() + text.size() || port < 1 || port > kMaxPort)
    return std::nullopt;
  return port;
}

std::string hex_of(const Instance& instance) {
  std::string out;
  for (const std::byte b : instance) out += fmt::format("{:02x}", std::to_integer<unsigned>(b));
  return out;
}

std::optional<Instance> instance_of(std::string_view text) {
  Instance out;
  if (text.size() != 2 * out.size()) return std::nullopt;
  for (std::size_t i = 0; i < out.size(); ++i) {
    unsigned value = 0;
    const char* at = text.data() + 2 * i;
    const auto [end, failed] = std::from_chars(at, at + 2, value, 16);
    if (failed != std::errc() || end != at + 2) return std::nullopt;
    out[i] = static_cast<std::byte>(value);
  }
  return out;
}

bool printable(std::string_view text) {
  for (const char c : text)
    if (c <= ' ' || c > '~') return false;
  return !text.empty();
}

/// The next line without its newline; none if there is no complete line.
std::optional<std::string_view> next_line(std::string_view& text) {
  const std::size_t end = text.find('\n');
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(end + 1);
  return line;
}

/// Parses one "name value" line into `file`.
bool take_field(std::string_view name, std::string_view value, RendezvousFile& file) {
  if (!printable(value)) return false;
  if (name == "instance") {
    const auto instance = instance_of(value);
    if (instance) file.instance = *instance;
    return instance.has_value();
  }
  if (name == "port") {
    const auto port = port_number(value);
    file.port = port.value_or(0);
    return port.has_value();
  }
  if (name == "address") {
    file.addresses.emplace_back(value);
    return file.addresses.size() <= kMaxAddresses && value.size() <= 64;
  }
  if (name != "secret") return false;
  auto secret = Secret::from_text(value);
  if (secret) file.secret = std::move(*secret);
  return secret.has_value();
}

tl::unexpected<Error> file_error(std::string_view what, const std::string& path) {
  const int error = errno;
  return fail(error == ENOENT ? Code::not_found : Code::io,
              fmt::format("{} {}: {}", what, path, std::strerror(error)));
}

}  // namespace

Result<RendezvousAddress> parse_url(std::string_view url, bool any_port) {
  const auto wrong = [&](std::string_view why) {
    return fail(Code::invalid_argument,
                fmt::format("rendezvous {}: {}; use tcp://HOST:PORT or file:///FOLDER",
                            url.substr(0, 200), why));
  };
  if (url.starts_with("fd://")) {
    const std::string_view text = url.substr(5);
    int fd = -1;
    const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), fd);
    if (failed != std::errc() || end != text.data() + text.size() || !is_rendezvous_socket(fd))
      return wrong("not an open SOCK_SEQPACKET socket of this process");
    return RendezvousAddress{"", "", 0, fd};
  }
  if (url.starts_with("file://")) {
    const std::string_view folder = url.substr(7);
    if (!folder.starts_with("/")) return wrong("the folder must begin with /");
    if (folder.find('\0') != std::string_view::npos) return wrong("a zero byte in the folder");
    return RendezvousAddress{std::string(folder), "", 0, -1};
  }
  if (!url.starts_with("tcp://")) return wrong("unknown scheme");
  std::string_view rest = url.substr(6);
  const std::size_t colon = rest.rfind(':');
  if (colon == std::string_view::npos) return wrong("no port");
  const auto port = port_number(rest.substr(colon + 1));
  const bool is_any = any_port && rest.substr(colon + 1) == "0";
  if (!port && !is_any) return wrong("the port must be 1 to 65535");
  std::string_view host = rest.substr(0, colon);
  if (host.starts_with("[") && host.ends_with("]")) {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return wrong("write an IPv6 address in brackets");
  }
  if (!printable(host) || host.find('/') != std::string_view::npos) return wrong("no host");
  return RendezvousAddress{"", std::string(host), port.value_or(0), -1};
}

Result<> check_job(std::string_view job) {
  bool good = !job.empty() && job.size() <= 64;
  for (const char c : job) {
    good = good && ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                    c == '-' || c == '_' || c == '.');
  }
  if (good) return {};
  return fail(Code::invalid_argument,
              "job name: must be 1 to 64 letters, digits, '-', '_' and '.'");
}

std::string format_rendezvous_file(const RendezvousFile& file) {
  std::string out =
      fmt::format("{}\ninstance {}\nport {}\n", kTitle, hex_of(file.instance), file.port);
  if (!file.secret.empty()) out += fmt::format("secret {}\n", file.secret.text());
  for (const std::string& address : file.addresses) out += fmt::format("address {}\n", address);
  return out + "end\n";
}

Result<RendezvousFile> parse_rendezvous_file(std::string_view text) {
  const auto wrong = [](std::size_t line) {
    return fail(Code::corrupt, fmt::format("line {} does not belong in a rendezvous file", line));
  };
  if (text.size() > kMaxFileBytes) return fail(Code::corrupt, "too long for a rendezvous file");
  if (next_line(text) != kTitle) return wrong(1);
  RendezvousFile file;
  for (std::size_t number = 2;; ++number) {
    const auto line = next_line(text);
    if (!line) return wrong(number);
    if (*line == "end") {
      if (!text.empty() || file.port == 0 || file.addresses.empty()) return wrong(number);
      return file;
    }
    const std::size_t space = line->find(' ');
    if (space == std::string_view::npos ||
        !take_field(line->substr(0, space), line->substr(space + 1), file))
      return wrong(number);
  }
}

std::string rendezvous_file_path(const std::string& folder, std::string_view job) {
  return fmt::format("{}/reshard-{}", folder, job);
}

Result<> write_rendezvous_file(const std::string& path, const RendezvousFile& content) {
  const std::string temporary = path + "." + hex_of(content.instance);
  FileDescriptor file(
      ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) return file_error("cannot write", temporary);
  const std::string text = format_rendezvous_file(content);
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = ::write(file.get(), text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    done += static_cast<std::size_t>(n);
  }
  // On a network file system closing the file publishes it.
  if (done < text.size() || ::close(file.release()) != 0 ||
      ::rename(temporary.c_str(), path.c_str()) != 0) {
    const auto error = file_error("cannot write", path);
    (void)::unlink(temporary.c_str());
    return error;
  }
  return {};
}

Result<RendezvousFile> read_rendezvous_file(const std::string& path) {
  const FileDescriptor file(
      ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY));
  if (!file) return file_error("cannot read", path);
  struct stat about{};
  if (::fstat(file.get(), &about) != 0) return file_error("cannot read", path);
  if (!S_ISREG(about.st_mode) || about.st_uid != ::geteuid() || (about.st_mode & 077) != 0) {
    return fail(Code::corrupt,
                fmt::format("{} is not a regular file of this user with mode 0600", path));
  }
  std::string text(kMaxFileBytes + 1, '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const ssize_t n = ::read(file.get(), text.data() + size, text.size() - size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return file_error("cannot read", path);
    if (n == 0) break;
    size += static_cast<std::size_t>(n);
  }
  auto content = parse_rendezvous_file(std::string_view(text).substr(0, size));
  if (!content) return tl::unexpected(std::move(content).error().in(path));
  return content;
}

void remove_rendezvous_file(const std::string& path, const Instance& instance) {
  const auto there = read_rendezvous_file(path);
  if (there && there->instance == instance) (void)::unlink(path.c_str());
}

}  // namespace reshard::tcp
