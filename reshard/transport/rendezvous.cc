// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/rendezvous.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include "reshard/transport/listening_socket.h"
#include "reshard/transport/tcp/authenticate.h"
#include "reshard/transport/tcp/control.h"
#include "reshard/transport/tcp/coordinator.h"
#include "reshard/transport/tcp/fd_socket.h"
#include "reshard/transport/tcp/rendezvous_address.h"
#include "reshard/transport/tcp/socket.h"

namespace reshard {
namespace {

using namespace std::chrono_literals;
using namespace tcp;

constexpr int kMaxRanks = 65536;
constexpr auto kAgain = 10ms;
constexpr std::chrono::milliseconds kConnectLimit = 2s;
constexpr auto kHandshakeTimeout = 5s;
/// Most bytes of the encoded settings, and of a value that is sent verbatim.
constexpr std::size_t kMaxSettingsBytes = 4096, kMaxValueBytes = 120;

/// The coordinators of this process whose rank 0 has left before the other ranks. A child of fork()
/// has none: what it has are copies without threads, which would never finish.
struct Served {
  pid_t process = ::getpid();
  std::mutex mutex;
  std::vector<std::unique_ptr<Coordinator>> coordinators;
  ~Served() {
    if (process == ::getpid()) return;
    for (auto& coordinator : coordinators) (void)coordinator.release();
  }
};
Served& served() {
  static Served all;
  // The copy is neither locked nor destroyed: a thread of the parent may have held its mutex.
  if (all.process != ::getpid()) new (&all) Served;
  return all;
}

/// The outcome of an attempt to join: the control plane, a final error, or why to try again.
struct Attempt {
  std::unique_ptr<TcpControl> control;
  std::optional<Error> error;
  std::string again;
};
Attempt again(std::string why) { return {nullptr, std::nullopt, std::move(why)}; }
Attempt refused(Error error) { return {nullptr, std::move(error), ""}; }

/// Errors: not a listening socket of the Internet protocols.
Result<> check_listener(int socket) {
  sockaddr_storage at{};
  socklen_t bytes = sizeof at;
  int listens = 0;
  socklen_t word = sizeof listens;
  const bool good = ::getsockname(socket, reinterpret_cast<sockaddr*>(&at), &bytes) == 0 &&
                    (at.ss_family == AF_INET || at.ss_family == AF_INET6) &&
                    ::getsockopt(socket, SOL_SOCKET, SO_ACCEPTCONN, &listens, &word) == 0 &&
                    listens == 1 && ::fcntl(socket, F_SETFL, O_NONBLOCK) == 0;
  if (good) return {};
  return fail(Code::invalid_argument,
              fmt::format("join: descriptor {} is not a TCP socket that listens", socket));
}

Result<> check(const RendezvousOptions& join, const RendezvousAddress& address) {
  RESHARD_TRY(check_job(join.job));
  if (join.size < 1 || join.size > kMaxRanks) {
    return fail(Code::invalid_argument,
                fmt::format("join: a group of {} ranks: must be 1 to {}", join.size, kMaxRanks));
  }
  if (join.rank.value() < 0 || join.rank.value() >= join.size) {
    return fail(Code::invalid_argument,
                fmt::format("join: rank {} in a group of {}: must be 0 to {}", join.rank.value(),
                            join.size, join.size - 1));
  }
  std::size_t bytes = 0;
  for (const auto& [name, value] : join.settings)
    bytes += name.size() + std::min(value.size(), kMaxValueBytes) + 2;
  if (bytes > kMaxSettingsBytes) {
    return fail(Code::invalid_argument,
                fmt::format("join: settings of {} bytes: at most {}", bytes, kMaxSettingsBytes));
  }
  if (!address.host.empty() && join.secret.empty())
    return fail(Code::invalid_argument,
                "join: a tcp:// rendezvous needs a secret that all ranks have");
  if (join.listener < 0) return {};
  if (address.host.empty() || join.rank != Rank{0})
    return fail(Code::invalid_argument,
                "join: only rank 0 of a tcp:// rendezvous may have a listener");
  return check_listener(join.listener);
}

bool is_plain(std::string_view text, std::size_t most) {
  return text.size() <= most &&
         std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; });
}

/// Describes a text that is too long for a message or not printable.
std::string describe_by_digest(const std::string& text, const Key& digest) {
  std::string hex;
  for (const std::byte b : std::span(digest).first(8))
    hex += fmt::format("{:02x}", std::to_integer<unsigned>(b));
  return fmt::format("of {} bytes with digest {}", text.size(), hex);
}

Frame request(const RendezvousOptions& join) {
  const Key digest = digest_of(join.agreement);
  Frame out{Kind::join,
            0,
            static_cast<std::uint64_t>(join.rank.value()),
            static_cast<std::uint64_t>(join.size),
            is_plain(join.agreement, 64) ? fmt::format("\"{}\"", join.agreement)
                                         : describe_by_digest(join.agreement, digest),
            {digest.begin(), digest.end()}};
  const auto add = [&](const std::string& text) {
    const std::string sent =
        is_plain(text, kMaxValueBytes) ? text : describe_by_digest(text, digest_of(text));
    std::ranges::transform(sent, std::back_inserter(out.bytes),
                           [](char c) { return static_cast<std::byte>(c); });
    out.bytes.push_back(std::byte{0});
  };
  for (const auto& [name, value] : join.settings) {
    add(name);
    add(value);
  }
  return out;
}

/// Authenticates a connection, joins, and waits for the other ranks.
Attempt enter(const RendezvousOptions& join, FileDescriptor socket, const GroupKey& key,
              const Instance& instance) {
  const Deadline limit = std::min(join.deadline, Deadline::after(kHandshakeTimeout));
  const Authentication made = authenticate(socket.get(), key, instance, limit, join.gives_up);
  if (made.verdict == Verdict::wrong_secret) {
    return refused({Code::aborted, join.secret.empty()
                                       ? "join: rank 0 has a secret, and this rank has none"
                                       : "join: the secret is not that of rank 0"});
  }
  if (!made.keys) return again(made.reason);
  auto wake_fd = WakeFd::make();
  if (!wake_fd) return refused(std::move(wake_fd).error());
  auto control = std::make_unique<TcpControl>(join.rank, join.size,
                                              TcpControl::Channel{std::move(socket), *made.keys},
                                              std::move(*wake_fd));
  auto outcome = control->enter(request(join), join.deadline, join.gives_up);
  if (!outcome) return again("rank 0 left before all ranks had joined");
  if (!*outcome) return refused(std::move(*outcome).error());
  return {std::move(control), std::nullopt, ""};
}

/// Errors: `invalid_argument` if a coordinator of this group listens there: rank 0 is taken then.
Result<> check_not_taken(const RendezvousOptions& join, const std::vector<std::string>& hosts,
                         int port, const Instance& instance) {
  const GroupKey key = group_key(join.job, join.secret);
  for (const std::string& host : hosts) {
    const auto socket = connect_to(host, port, kConnectLimit, join.deadline);
    const Deadline limit = std::min(join.deadline, Deadline::after(kHandshakeTimeout));
    if (socket && authenticate(socket->get(), key, instance, limit).verdict != Verdict::other_group)
      return fail(Code::invalid_argument,
                  "join: rank 0 is taken: another process has joined as it");
  }
  return {};
}

Attempt enter_at(const RendezvousOptions& join, const std::vector<std::string>& hosts, int port,
                 const GroupKey& key, const Instance& instance) {
  Attempt last = again("nothing listens there");
  for (const std::string& host : hosts) {
    auto socket = connect_to(host, port, kConnectLimit, join.deadline);
    // An address from a file may be stale, one from the user is final.
    if (!socket && socket.error().code == Code::invalid_argument && instance == Instance{})
      return refused(std::move(socket).error().in("join"));
    if (!socket) {
      last = again(fmt::format("{}:{}: {}", host, port, socket.error().message));
      continue;
    }
    last = enter(join, std::move(*socket), key, instance);
    if (last.control || last.error) break;
  }
  return last;
}

Attempt enter_by_file(const RendezvousOptions& join, const std::string& path) {
  const auto file = read_rendezvous_file(path);
  if (!file) return again(file.error().message);
  // Without a secret here and in the file, a living rank 0 refuses with the reason; a dead one is
  // retried.
  const GroupKey key = group_key(join.job, join.secret.empty() ? file->secret : join.secret);
  return enter_at(join, file->addresses, file->port, key, file->instance);
}

Attempt enter_by_fd(const RendezvousOptions& join, int fd, const GroupKey& key) {
  auto socket = connect_through(fd);
  if (!socket) return again(socket.error().message);
  return enter(join, std::move(*socket), key, Instance{});
}

Result<> check_not_cancelled(const RendezvousOptions& join) {
  std::string reason = join.gives_up ? join.gives_up() : "";
  if (reason.empty()) return {};
  return fail(Code::aborted, std::move(reason));
}

Result<std::unique_ptr<ControlPlane>> join_others(const RendezvousOptions& join,
                                                  const RendezvousAddress& address) {
  const GroupKey key = group_key(join.job, join.secret);
  for (;;) {
    RESHARD_TRY(check_not_cancelled(join));
    Attempt attempt = address.fd >= 0 ? enter_by_fd(join, address.fd, key)
                      : address.folder.empty()
                          ? enter_at(join, {address.host}, address.port, key, Instance{})
                          : enter_by_file(join, rendezvous_file_path(address.folder, join.job));
    if (attempt.control) return std::move(attempt.control);
    if (attempt.error) return tl::unexpected(std::move(*attempt.error));
    if (join.deadline.expired()) {
      return fail(
          Code::deadline,
          fmt::format("join: rank 0 did not arrive before the deadline ({})", attempt.again));
    }
    std::this_thread::sleep_for(kAgain);
  }
}

/// Retries while the port is in use: an earlier group may hold it for a moment.
Result<Listener> listen_when_free(const RendezvousOptions& join, const RendezvousAddress& address) {
  for (;;) {
    RESHARD_TRY(check_not_cancelled(join));
    bool in_use = false;
    auto listener = listen_at(address.host, address.port, &in_use);
    if (listener) return listener;
    if (in_use) RESHARD_TRY(check_not_taken(join, {address.host}, address.port, Instance{}));
    if (!in_use || join.deadline.expired())
      return tl::unexpected(std::move(listener).error().in("join"));
    std::this_thread::sleep_for(kAgain);
  }
}

/// Duplicates the descriptor, which stays the caller's.
Result<Listener> listen_at_fd(int fd) {
  FileDescriptor own(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!own) return fail(Code::io, fmt::format("join: {}", std::strerror(errno)));
  return Listener{std::move(own), 0};
}

/// Removes the rendezvous file at the end of its scope.
class RendezvousFileGuard {
 public:
  RendezvousFileGuard(std::string path, const Instance& instance)
      : path_(std::move(path)), instance_(instance) {}
  ~RendezvousFileGuard() { remove_rendezvous_file(path_, instance_); }
  RendezvousFileGuard(const RendezvousFileGuard&) = delete;
  RendezvousFileGuard& operator=(const RendezvousFileGuard&) = delete;

 private:
  std::string path_;
  Instance instance_;
};

Result<std::unique_ptr<ControlPlane>> join_as_rank_0(const RendezvousOptions& join,
                                                     const RendezvousAddress& address) {
  raise_file_limit(static_cast<std::size_t>(join.size));
  const std::string path =
      address.folder.empty() ? "" : rendezvous_file_path(address.folder, join.job);
  if (const auto there = read_rendezvous_file(path))
    RESHARD_TRY(check_not_taken(join, there->addresses, there->port, there->instance));
  const int given = join.listener >= 0 ? join.listener : address.fd;
  Listener listener =
      RESHARD_TRY(given >= 0 ? listen_at_fd(given) : listen_when_free(join, address));
  auto [mine, coordinators] = RESHARD_TRY(socket_pair());
  RendezvousFile file;
  file.instance = random_instance();
  file.port = listener.port;
  file.addresses = own_addresses();
  if (join.secret.empty() && address.fd < 0) file.secret = Secret::random();
  Coordinator::Options options;
  options.size = join.size;
  options.key = group_key(join.job, join.secret.empty() ? file.secret : join.secret);
  options.instance = file.instance;
  auto coordinator = std::make_unique<Coordinator>(
      options, std::move(listener.socket), std::move(coordinators), RESHARD_TRY(WakeFd::make()));
  std::optional<RendezvousFileGuard> guard;
  if (!path.empty()) {
    RESHARD_TRY(write_rendezvous_file(path, file));
    guard.emplace(path, file.instance);
  }
  Attempt attempt = enter(join, std::move(mine), options.key, options.instance);
  if (attempt.error) return tl::unexpected(std::move(*attempt.error));
  if (!attempt.control)
    return fail(Code::io, fmt::format("join: rank 0 cannot connect to itself: {}", attempt.again));
  attempt.control->own(std::move(coordinator));
  return std::move(attempt.control);
}

}  // namespace

namespace tcp {

void keep_serving(std::unique_ptr<Coordinator> coordinator) {
  Served& all = served();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.coordinators, [](const auto& c) { return c->finished(); });
  all.coordinators.push_back(std::move(coordinator));
}

}  // namespace tcp

Result<> finish_serving(Deadline deadline) {
  Served& all = served();
  std::vector<std::unique_ptr<Coordinator>> coordinators;
  {
    const std::lock_guard lock(all.mutex);
    coordinators.swap(all.coordinators);
  }
  std::size_t late = 0;
  for (auto& coordinator : coordinators) {
    if (coordinator->wait_finished(deadline)) continue;
    keep_serving(std::move(coordinator));
    ++late;
  }
  if (late == 0) return {};
  return fail(Code::deadline,
              fmt::format("ranks of {} groups that this process serves have not left", late));
}

Result<std::unique_ptr<ControlPlane>> join(const RendezvousOptions& join) {
  RESHARD_TRY(start_crypto());
  const RendezvousAddress address = RESHARD_TRY(parse_url(join.url));
  RESHARD_TRY(check(join, address));
  return join.rank == Rank{0} ? join_as_rank_0(join, address) : join_others(join, address);
}

void remove_dead_rendezvous(const RendezvousOptions& join) {
  const auto address = parse_url(join.url);
  if (!address || address->folder.empty() || !check_job(join.job) || !start_crypto()) return;
  const std::string path = rendezvous_file_path(address->folder, join.job);
  const auto there = read_rendezvous_file(path);
  if (!there || there->addresses != own_addresses()) return;
  if (check_not_taken(join, there->addresses, there->port, there->instance))
    remove_rendezvous_file(path, there->instance);
}

Result<ListeningSocket> ListeningSocket::make() {
  tcp::Listener made = RESHARD_TRY(tcp::listen_at("", 0));
  return ListeningSocket(std::move(made.socket), made.port);
}

}  // namespace reshard
