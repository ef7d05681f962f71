// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/rendezvous.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <mutex>
#include <thread>
#include <utility>

#include "reshard/transport/tcp/control.h"
#include "reshard/transport/tcp/coordinator.h"
#include "reshard/transport/tcp/door.h"
#include "reshard/transport/tcp/rendezvous_address.h"
#include "reshard/transport/tcp/socket.h"

namespace reshard {
namespace {

using namespace std::chrono_literals;
using namespace tcp;

constexpr int kMaxRanks = 65536;
constexpr auto kAgain = 10ms;
constexpr std::chrono::milliseconds kConnectLimit = 2s;
constexpr auto kGreetingLimit = 5s;
/// Longest settings as they travel, and longest value that is sent as it is.
constexpr std::size_t kMostSettings = 4096, kMostValue = 120;

/// Hubs of this process whose rank 0 has left before the others.
struct Served {
  std::mutex mutex;
  std::vector<std::unique_ptr<Coordinator>> hubs;
};
Served& served() {
  static Served all;
  return all;
}

/// A try to join: the control plane, an error that ends it all, or why to try again.
struct Attempt {
  std::unique_ptr<TcpControl> control;
  std::optional<Error> error;
  std::string again;
};
Attempt again(std::string why) { return {nullptr, std::nullopt, std::move(why)}; }
Attempt refused(Error error) { return {nullptr, std::move(error), ""}; }

Result<> check(const RendezvousOptions& join, const RendezvousAddress& place) {
  RESHARD_TRY(check_job(join.job));
  if (join.size < 1 || join.size > kMaxRanks) {
    return fail(
        Code::invalid_argument,
        fmt::format("join: a group of {} ranks: 1 to {} are possible", join.size, kMaxRanks));
  }
  if (join.rank.value() < 0 || join.rank.value() >= join.size) {
    return fail(Code::invalid_argument,
                fmt::format("join: rank {} in a group of {}: 0 to {} are possible",
                            join.rank.value(), join.size, join.size - 1));
  }
  std::size_t bytes = 0;
  for (const auto& [name, value] : join.settings)
    bytes += name.size() + std::min(value.size(), kMostValue) + 2;
  if (bytes > kMostSettings) {
    return fail(Code::invalid_argument,
                fmt::format("join: settings of {} bytes: {} are possible", bytes, kMostSettings));
  }
  if (!place.host.empty() && join.secret.empty())
    return fail(Code::invalid_argument,
                "join: a tcp:// rendezvous needs a secret that all ranks have");
  return {};
}

bool is_plain(std::string_view text, std::size_t most) {
  return text.size() <= most &&
         std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; });
}

/// How a text that is too long for a message, or not plain, is named in it.
std::string named_by_digest(const std::string& text, const Key& digest) {
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
                                         : named_by_digest(join.agreement, digest),
            {digest.begin(), digest.end()}};
  const auto add = [&](const std::string& text) {
    const std::string sent =
        is_plain(text, kMostValue) ? text : named_by_digest(text, digest_of(text));
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

/// Says hello; the hub's verdict, `other_group` when it is none or none came.
Verdict greet(int socket, const Greeting& greeting, Deadline limit) {
  std::array<std::byte, 1> verdict{};
  const bool answered =
      send_all(socket, greeting.hello(), limit) && receive_all(socket, verdict, limit);
  for (const Verdict v : {Verdict::welcome, Verdict::wrong_secret})
    if (answered && verdict[0] == static_cast<std::byte>(v)) return v;
  return Verdict::other_group;
}

/// From a connected socket to a rank that waits for the others.
Attempt enter(const RendezvousOptions& join, FileDescriptor socket, const GroupKey& key,
              const Instance& instance) {
  const Deadline limit = std::min(join.deadline, Deadline::after(kGreetingLimit));
  const Greeting greeting(key, instance);
  const Verdict verdict = greet(socket.get(), greeting, limit);
  if (verdict == Verdict::wrong_secret) {
    return refused({Code::aborted, join.secret.empty()
                                       ? "join: rank 0 came with a secret, and this rank has none"
                                       : "join: the secret is not the one that rank 0 came with"});
  }
  if (verdict != Verdict::welcome) return again("this group does not gather there");
  std::array<std::byte, kAnswerBytes> answer{};
  const auto answered = receive_all(socket.get(), answer, limit);
  if (!answered) return again(answered.error().message);
  const auto keys = greeting.finish(answer);
  if (!keys) return again(keys.error().message);
  auto bell = Bell::make();
  if (!bell) return refused(std::move(bell).error());
  auto control = std::make_unique<TcpControl>(
      join.rank, join.size, TcpControl::Line{std::move(socket), *keys}, std::move(*bell));
  auto outcome = control->enter(request(join), join.deadline, join.gives_up);
  if (!outcome) return again("rank 0 went away before all ranks had come");
  if (!*outcome) return refused(std::move(*outcome).error());
  return {std::move(control), std::nullopt, ""};
}

/// A hub of this group that gathers there now: rank 0 is taken then.
Result<> check_not_taken(const RendezvousOptions& join, const std::vector<std::string>& hosts,
                         int port, const Instance& instance) {
  const Greeting greeting(group_key(join.job, join.secret), instance);
  for (const std::string& host : hosts) {
    const auto socket = connect_to(host, port, kConnectLimit, join.deadline);
    const Deadline limit = std::min(join.deadline, Deadline::after(kGreetingLimit));
    if (socket && greet(socket->get(), greeting, limit) != Verdict::other_group)
      return fail(Code::invalid_argument,
                  "join: rank 0 is taken: another process has joined as it");
  }
  return {};
}

Attempt enter_at(const RendezvousOptions& join, const std::vector<std::string>& hosts, int port,
                 const GroupKey& key, const Instance& instance) {
  Attempt last = again("nobody is there");
  for (const std::string& host : hosts) {
    auto socket = connect_to(host, port, kConnectLimit, join.deadline);
    // What a file says may be a dead job's; what the user says stays as it is.
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
  const auto meeting = read_meeting(path);
  if (!meeting) return again(meeting.error().message);
  // Where neither has a secret a rank 0 that lives says so; a dead job's file says nothing.
  const GroupKey key = group_key(join.job, join.secret.empty() ? meeting->secret : join.secret);
  return enter_at(join, meeting->addresses, meeting->port, key, meeting->instance);
}

Attempt enter_by_door(const RendezvousOptions& join, int door, const GroupKey& key) {
  auto socket = knock(door);
  if (!socket) return again(socket.error().message);
  return enter(join, std::move(*socket), key, Instance{});
}

Result<> go_on(const RendezvousOptions& join) {
  std::string reason = join.gives_up ? join.gives_up() : "";
  if (reason.empty()) return {};
  return fail(Code::aborted, std::move(reason));
}

Result<std::unique_ptr<ControlPlane>> join_others(const RendezvousOptions& join,
                                                  const RendezvousAddress& place) {
  const GroupKey key = group_key(join.job, join.secret);
  for (;;) {
    RESHARD_TRY(go_on(join));
    Attempt attempt = place.door >= 0 ? enter_by_door(join, place.door, key)
                      : place.folder.empty()
                          ? enter_at(join, {place.host}, place.port, key, Instance{})
                          : enter_by_file(join, meeting_path(place.folder, join.job));
    if (attempt.control) return std::move(attempt.control);
    if (attempt.error) return tl::unexpected(std::move(*attempt.error));
    if (join.deadline.expired()) {
      return fail(Code::deadline,
                  fmt::format("join: rank 0 did not come before the deadline ({})", attempt.again));
    }
    std::this_thread::sleep_for(kAgain);
  }
}

/// A port of an earlier group may still be in use by it for a moment.
Result<Listener> listen_when_free(const RendezvousOptions& join, const RendezvousAddress& place) {
  for (;;) {
    RESHARD_TRY(go_on(join));
    bool in_use = false;
    auto listener = listen_at(place.host, place.port, &in_use);
    if (listener) return listener;
    if (in_use) RESHARD_TRY(check_not_taken(join, {place.host}, place.port, Instance{}));
    if (!in_use || join.deadline.expired())
      return tl::unexpected(std::move(listener).error().in("join"));
    std::this_thread::sleep_for(kAgain);
  }
}

/// The descriptor stays the caller's.
Result<Listener> at_door(int door) {
  FileDescriptor own(::fcntl(door, F_DUPFD_CLOEXEC, 0));
  if (!own) return fail(Code::io, fmt::format("join: {}", std::strerror(errno)));
  return Listener{std::move(own), 0};
}

/// The rendezvous file, for as long as ranks are looked for.
class Notice {
 public:
  Notice(std::string path, const Instance& instance)
      : path_(std::move(path)), instance_(instance) {}
  ~Notice() { remove_meeting(path_, instance_); }
  Notice(const Notice&) = delete;
  Notice& operator=(const Notice&) = delete;

 private:
  std::string path_;
  Instance instance_;
};

Result<std::unique_ptr<ControlPlane>> join_as_first(const RendezvousOptions& join,
                                                    const RendezvousAddress& place) {
  make_room_for_files(static_cast<std::size_t>(join.size));
  const std::string path = place.folder.empty() ? "" : meeting_path(place.folder, join.job);
  if (const auto there = read_meeting(path))
    RESHARD_TRY(check_not_taken(join, there->addresses, there->port, there->instance));
  Listener listener =
      RESHARD_TRY(place.door >= 0 ? at_door(place.door) : listen_when_free(join, place));
  auto [mine, hubs] = RESHARD_TRY(socket_pair());
  RendezvousPoint meeting;
  meeting.instance = random_instance();
  meeting.port = listener.port;
  meeting.addresses = own_addresses();
  if (join.secret.empty() && place.door < 0) meeting.secret = Secret::random();
  Coordinator::Options options;
  options.size = join.size;
  options.key = group_key(join.job, join.secret.empty() ? meeting.secret : join.secret);
  options.instance = meeting.instance;
  auto hub = std::make_unique<Coordinator>(options, std::move(listener.socket), std::move(hubs),
                                           RESHARD_TRY(Bell::make()));
  std::optional<Notice> notice;
  if (!path.empty()) {
    RESHARD_TRY(write_meeting(path, meeting));
    notice.emplace(path, meeting.instance);
  }
  Attempt attempt = enter(join, std::move(mine), options.key, options.instance);
  if (attempt.error) return tl::unexpected(std::move(*attempt.error));
  if (!attempt.control)
    return fail(Code::io, fmt::format("join: rank 0 cannot reach itself: {}", attempt.again));
  attempt.control->own(std::move(hub));
  return std::move(attempt.control);
}

}  // namespace

namespace tcp {

void keep_serving(std::unique_ptr<Coordinator> hub) {
  Served& all = served();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.hubs, [](const auto& h) { return h->finished(); });
  all.hubs.push_back(std::move(hub));
}

}  // namespace tcp

Result<> finish_serving(Deadline deadline) {
  Served& all = served();
  std::vector<std::unique_ptr<Coordinator>> hubs;
  {
    const std::lock_guard lock(all.mutex);
    hubs.swap(all.hubs);
  }
  std::size_t late = 0;
  for (auto& hub : hubs) {
    if (hub->wait_finished(deadline)) continue;
    keep_serving(std::move(hub));
    ++late;
  }
  if (late == 0) return {};
  return fail(Code::deadline,
              fmt::format("ranks of {} groups that this process serves have not left", late));
}

Result<std::unique_ptr<ControlPlane>> join(const RendezvousOptions& join) {
  RESHARD_TRY(start_crypto());
  const RendezvousAddress place = RESHARD_TRY(parse_url(join.url));
  RESHARD_TRY(check(join, place));
  return join.rank == Rank{0} ? join_as_first(join, place) : join_others(join, place);
}

void remove_dead_rendezvous(const RendezvousOptions& join) {
  const auto place = parse_url(join.url);
  if (!place || place->folder.empty() || !check_job(join.job) || !start_crypto()) return;
  const std::string path = meeting_path(place->folder, join.job);
  const auto there = read_meeting(path);
  if (!there || there->addresses != own_addresses()) return;
  if (check_not_taken(join, there->addresses, there->port, there->instance))
    remove_meeting(path, there->instance);
}

}  // namespace reshard
