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

#include "reshard/base/file_descriptor.h"
#include "reshard/transport/tcp/door.h"

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

/// The next line without its end; nothing when there is no whole one.
std::optional<std::string_view> next_line(std::string_view& text) {
  const std::size_t end = text.find('\n');
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(end + 1);
  return line;
}

/// Takes one "name value" line into the meeting.
bool take_field(std::string_view name, std::string_view value, RendezvousPoint& meeting) {
  if (!printable(value)) return false;
  if (name == "instance") {
    const auto instance = instance_of(value);
    if (instance) meeting.instance = *instance;
    return instance.has_value();
  }
  if (name == "port") {
    const auto port = port_number(value);
    meeting.port = port.value_or(0);
    return port.has_value();
  }
  if (name == "address") {
    meeting.addresses.emplace_back(value);
    return meeting.addresses.size() <= kMaxAddresses && value.size() <= 64;
  }
  if (name != "secret") return false;
  auto secret = Secret::from_text(value);
  if (secret) meeting.secret = std::move(*secret);
  return secret.has_value();
}

tl::unexpected<Error> file_error(std::string_view what, const std::string& path) {
  const int error = errno;
  return fail(error == ENOENT ? Code::not_found : Code::io,
              fmt::format("{} {}: {}", what, path, std::strerror(error)));
}

}  // namespace

Result<RendezvousAddress> parse_url(std::string_view url) {
  const auto wrong = [&](std::string_view why) {
    return fail(Code::invalid_argument,
                fmt::format("rendezvous {}: {}; tcp://HOST:PORT and file:///FOLDER are possible",
                            url.substr(0, 200), why));
  };
  if (url.starts_with("fd://")) {
    const std::string_view text = url.substr(5);
    int door = -1;
    const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), door);
    if (failed != std::errc() || end != text.data() + text.size() || !is_door(door))
      return wrong("no socket of SOCK_SEQPACKET that this process has open");
    return RendezvousAddress{"", "", 0, door};
  }
  if (url.starts_with("file://")) {
    const std::string_view folder = url.substr(7);
    if (!folder.starts_with("/")) return wrong("the folder must begin with /");
    if (folder.find('\0') != std::string_view::npos) return wrong("a zero byte in the folder");
    return RendezvousAddress{std::string(folder), "", 0, -1};
  }
  if (!url.starts_with("tcp://")) return wrong("unknown kind");
  std::string_view rest = url.substr(6);
  const std::size_t colon = rest.rfind(':');
  if (colon == std::string_view::npos) return wrong("no port");
  const auto port = port_number(rest.substr(colon + 1));
  if (!port) return wrong("the port must be 1 to 65535");
  std::string_view host = rest.substr(0, colon);
  if (host.starts_with("[") && host.ends_with("]")) {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return wrong("write an IPv6 address in brackets");
  }
  if (!printable(host) || host.find('/') != std::string_view::npos) return wrong("no host");
  return RendezvousAddress{"", std::string(host), *port, -1};
}

Result<> check_job(std::string_view job) {
  bool good = !job.empty() && job.size() <= 64;
  for (const char c : job) {
    good = good && ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                    c == '-' || c == '_' || c == '.');
  }
  if (good) return {};
  return fail(Code::invalid_argument,
              "job name: 1 to 64 letters, digits, '-', '_' and '.' are possible");
}

std::string meeting_text(const RendezvousPoint& meeting) {
  std::string out =
      fmt::format("{}\ninstance {}\nport {}\n", kTitle, hex_of(meeting.instance), meeting.port);
  if (!meeting.secret.empty()) out += fmt::format("secret {}\n", meeting.secret.text());
  for (const std::string& address : meeting.addresses) out += fmt::format("address {}\n", address);
  return out + "end\n";
}

Result<RendezvousPoint> parse_meeting(std::string_view text) {
  const auto wrong = [](std::size_t line) {
    return fail(Code::corrupt, fmt::format("line {} is not that of a rendezvous file", line));
  };
  if (text.size() > kMaxFileBytes) return fail(Code::corrupt, "too long for a rendezvous file");
  if (next_line(text) != kTitle) return wrong(1);
  RendezvousPoint meeting;
  for (std::size_t number = 2;; ++number) {
    const auto line = next_line(text);
    if (!line) return wrong(number);
    if (*line == "end") {
      if (!text.empty() || meeting.port == 0 || meeting.addresses.empty()) return wrong(number);
      return meeting;
    }
    const std::size_t space = line->find(' ');
    if (space == std::string_view::npos ||
        !take_field(line->substr(0, space), line->substr(space + 1), meeting))
      return wrong(number);
  }
}

std::string meeting_path(const std::string& folder, std::string_view job) {
  return fmt::format("{}/reshard-{}", folder, job);
}

Result<> write_meeting(const std::string& path, const RendezvousPoint& meeting) {
  const std::string temporary = path + "." + hex_of(meeting.instance);
  FileDescriptor file(
      ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) return file_error("cannot write", temporary);
  const std::string text = meeting_text(meeting);
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = ::write(file.get(), text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    done += static_cast<std::size_t>(n);
  }
  // Others may read over a network, where closing is what publishes.
  if (done < text.size() || ::close(file.release()) != 0 ||
      ::rename(temporary.c_str(), path.c_str()) != 0) {
    const auto error = file_error("cannot write", path);
    (void)::unlink(temporary.c_str());
    return error;
  }
  return {};
}

Result<RendezvousPoint> read_meeting(const std::string& path) {
  const FileDescriptor file(
      ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY));
  if (!file) return file_error("cannot read", path);
  struct stat about{};
  if (::fstat(file.get(), &about) != 0) return file_error("cannot read", path);
  if (!S_ISREG(about.st_mode) || about.st_uid != ::geteuid() || (about.st_mode & 077) != 0) {
    return fail(Code::corrupt,
                fmt::format("{} is not a file of this user that nobody else may read", path));
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
  auto meeting = parse_meeting(std::string_view(text).substr(0, size));
  if (!meeting) return tl::unexpected(std::move(meeting).error().in(path));
  return meeting;
}

void remove_meeting(const std::string& path, const Instance& instance) {
  const auto there = read_meeting(path);
  if (there && there->instance == instance) (void)::unlink(path.c_str());
}

}  // namespace reshard::tcp
