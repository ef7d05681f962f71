// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/control_server.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <thread>
#include <utility>

#include "reshard/transport/tcp/authenticate.h"
#include "reshard/transport/tcp/fd_socket.h"
#include "reshard/transport/tcp/rendezvous_address.h"
#include "reshard/transport/tcp/socket.h"
#include "reshard/transport/tcp/stream.h"

namespace reshard {
namespace {

using namespace std::chrono_literals;
using namespace tcp;

constexpr auto kJoinLimit = 5s;
constexpr auto kServerFarewell = 1s;  ///< for messages that have not left when the server ends.
constexpr std::size_t kMaxUnauthenticated = 256;

class SecureServer final : public ControlServer {
 public:
  SecureServer(std::string url, std::string file_path, const Instance& instance,
               const GroupKey& key, FileDescriptor listener, WakeFd wake_fd, Callbacks callbacks)
      : url_(std::move(url)),
        file_path_(std::move(file_path)),
        instance_(instance),
        key_(key),
        listener_(std::move(listener)),
        wake_fd_(std::move(wake_fd)),
        callbacks_(std::move(callbacks)) {}

  ~SecureServer() override {
    stop_ = true;
    wake_fd_.notify();
    if (thread_.joinable()) thread_.join();
    if (!file_path_.empty()) remove_rendezvous_file(file_path_, instance_);
  }

  /// Apart from the constructor: callbacks may use the object that serve() returns.
  void start() {
    thread_ = thread_without_signals([this] { run(); });
  }

  const std::string& url() const override { return url_; }

  void send(ConnectionId to, std::span<const std::byte> message) override {
    const auto found = connections_.find(to);
    if (found == connections_.end() || !found->second.writer || found->second.parting) return;
    Frame frame;
    frame.kind = Kind::message;
    frame.bytes.assign(message.begin(), message.end());
    found->second.writer->queue(frame);
  }

  void close(ConnectionId connection) override {
    const auto found = connections_.find(connection);
    if (found == connections_.end()) return;
    found->second.parting = true;
    found->second.since = Clock::now();
  }

 private:
  struct Connection {
    FileDescriptor socket;
    Clock::time_point since;
    HelloReader hello = {};
    std::unique_ptr<SecureReader> reader = {};
    std::unique_ptr<SecureWriter> writer = {};
    bool known = false;    ///< has sent a message.
    bool parting = false;  ///< to be closed once all queued bytes are sent.
    bool over = false;     ///< to be closed now.
  };

  void run() {
    while (!stop_) {
      poll_all(-1);
      if (const auto at = callbacks_.next_wake(); at && Clock::now() >= *at) callbacks_.wake();
      flush();
    }
    listener_ = {};
    for (auto& [id, c] : connections_) c.parting = true;
    const Clock::time_point end = Clock::now() + kServerFarewell;
    for (flush(); !connections_.empty() && Clock::now() < end; flush()) poll_all(10);
  }

  int timeout(int most) const {
    Clock::time_point next = callbacks_.next_wake().value_or(Clock::time_point::max());
    for (const auto& [id, c] : connections_)
      if (!c.known || c.parting) next = std::min(next, c.since + kJoinLimit);
    const int wait = milliseconds_until(next, Clock::now());
    return most >= 0 && (wait < 0 || wait > most) ? most : wait;
  }

  void poll_all(int most) {
    polled_.clear();
    polled_.push_back({wake_fd_.fd(), POLLIN, 0});
    polled_.push_back({listener_.get(), POLLIN, 0});
    ids_.clear();
    for (const auto& [id, c] : connections_) {
      const bool writes = c.writer && !c.writer->idle();
      polled_.push_back(
          {c.socket.get(), static_cast<short>(writes ? POLLIN | POLLOUT : POLLIN), 0});
      ids_.push_back(id);
    }
    if (::poll(polled_.data(), polled_.size(), timeout(most)) <= 0) return;
    if (polled_[0].revents != 0) wake_fd_.clear();
    for (std::size_t i = 2; i < polled_.size(); ++i)
      if ((polled_[i].revents & ~POLLOUT) != 0) read(ids_[i - 2]);
    if (polled_[1].revents != 0) accept_one();
  }

  void accept_one() {
    FileDescriptor socket = accept_connection(listener_.get()).socket;
    if (!socket) {
      // Most likely out of file descriptors, and the listener stays readable.
      if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
        std::this_thread::sleep_for(10ms);
      return;
    }
    std::size_t unknown = 0;
    for (auto& [id, c] : connections_)
      if (!c.known && !c.over && ++unknown >= kMaxUnauthenticated) c.over = true;
    tune(socket.get());
    connections_.emplace(next_id_++,
                         Connection{.socket = std::move(socket), .since = Clock::now()});
  }

  void read(ConnectionId id) {
    Connection& c = connections_.at(id);
    if (c.over) return;
    if (!c.reader) {
      const auto state = c.hello.read(c.socket.get(), key_, instance_);
      if (state == HelloReader::State::more) return;
      const Reply& reply = c.hello.reply();
      c.over = state == HelloReader::State::ended || reply.verdict != Verdict::welcome;
      if (c.over) return;
      c.reader = std::make_unique<SecureReader>(reply.keys.from_rank);
      c.writer = std::make_unique<SecureWriter>(reply.keys.from_coordinator);
      c.writer->begin_with(c.hello.welcome());
      return;
    }
    const Flow flow =
        c.reader->read(c.socket.get(), kMaxControlMessageBytes + kMaxTextBytes, [&](Frame& frame) {
          if (frame.kind != Kind::message || c.parting) return false;
          c.known = true;
          callbacks_.received(id, frame.bytes);
          return true;
        });
    if (flow == Flow::ended) c.over = true;
  }

  void flush() {
    const Clock::time_point now = Clock::now();
    std::vector<ConnectionId> lost;
    for (auto it = connections_.begin(); it != connections_.end();) {
      Connection& c = it->second;
      if (c.writer && !c.over && c.writer->flush(c.socket.get()) == Flow::ended) c.over = true;
      const bool idle = !c.writer || c.writer->idle();
      const bool late = now - c.since >= kJoinLimit;
      if (c.parting && (idle || late)) c.over = true;
      if (!c.known && late) c.over = true;
      if (!c.over) {
        ++it;
        continue;
      }
      if (c.known && !c.parting) lost.push_back(it->first);
      it = connections_.erase(it);
    }
    if (stop_ || lost.empty()) return;
    for (const ConnectionId id : lost) callbacks_.lost(id);
    flush();  // what the callbacks have sent and closed.
  }

  const std::string url_, file_path_;
  const Instance instance_;
  const GroupKey key_;
  FileDescriptor listener_;
  const WakeFd wake_fd_;
  const Callbacks callbacks_;
  std::map<ConnectionId, Connection> connections_;
  ConnectionId next_id_ = 1;
  std::vector<pollfd> polled_;
  std::vector<ConnectionId> ids_;  ///< of polled_, from the third on.
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<ControlServer>> ControlServer::serve(const ControlAddress& address,
                                                            Callbacks callbacks) {
  RESHARD_TRY(start_crypto());
  RESHARD_TRY(check_job(address.job));
  const RendezvousAddress at = RESHARD_TRY(parse_url(address.url, true));
  if (!callbacks.received || !callbacks.lost || !callbacks.next_wake || !callbacks.wake)
    return fail(Code::invalid_argument, "serve: a callback is missing");
  if (at.fd >= 0) return fail(Code::invalid_argument, "serve: the URL is tcp:// or file://");
  if (at.folder.empty() && address.secret.empty())
    return fail(Code::invalid_argument, "serve: a tcp:// address needs a secret");
  const std::string path = at.folder.empty() ? "" : rendezvous_file_path(at.folder, address.job);
  Listener listener = RESHARD_TRY(listen_at(at.host, at.port));
  RendezvousFile file;
  file.port = listener.port;
  file.addresses = own_addresses();
  if (address.secret.empty()) file.secret = Secret::random();
  // Whoever connects by a file names the server; at an address any server of the job will do.
  file.instance = random_instance();
  const GroupKey key =
      group_key(address.job, address.secret.empty() ? file.secret : address.secret);
  WakeFd wake_fd = RESHARD_TRY(WakeFd::make());
  const std::string host = at.host.find(':') == std::string::npos ? at.host : "[" + at.host + "]";
  auto made = std::make_unique<SecureServer>(
      path.empty() ? fmt::format("tcp://{}:{}", host, listener.port) : address.url, path,
      file.instance, key, std::move(listener.socket), std::move(wake_fd), std::move(callbacks));
  if (!path.empty()) RESHARD_TRY(write_rendezvous_file(path, file));
  made->start();
  return made;
}

}  // namespace reshard
