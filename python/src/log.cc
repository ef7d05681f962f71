// SPDX-License-Identifier: Apache-2.0
// Events on their way to Python's logging. The thread on which one happens may hold no GIL, or keep
// the holder of the GIL waiting, and so never takes it: it sends the event through a socket, from
// which a thread of Python reads (reshard/_log.py). No lock is taken.
#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include "python/src/support.h"
#include "reshard/base/log/log.h"

namespace reshard::python {
namespace {

constexpr std::uint64_t kNowhere = 0;
constexpr int kPidBits = 32;

/// The process above, and the socket in it below.
std::atomic<std::uint64_t> events_to{kNowhere};

std::uint64_t in_this_process(int socket) {
  return static_cast<std::uint64_t>(::getpid()) << kPidBits | static_cast<std::uint32_t>(socket);
}

/// The event as one packet of lines: level, room, rank or "", microseconds since 1970, message.
std::string packet(const LogRecord& r) {
  using std::chrono::microseconds;
  const auto time = std::chrono::floor<microseconds>(r.time.time_since_epoch()).count();
  return fmt::format("{}\n{}\n{}\n{}\n{}", name(r.level), r.room,
                     r.rank ? std::to_string(*r.rank) : "", time, r.message);
}

/// Sends the event, or writes it to standard error: if the socket is full, and in a process that
/// was forked, whose parent reads from the socket.
void send_event(const LogRecord& record) {
  const std::uint64_t to = events_to.load();
  const int socket = static_cast<int>(to & ~std::uint32_t{0});
  if (to != in_this_process(socket)) return write_log_line(record);
  const std::string text = packet(record);
  if (::send(socket, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
    write_log_line(record);
}

}  // namespace

void bind_log(nb::module_& m) {
  m.def(
      "_log_to",
      [](std::optional<int> socket) {
        events_to.store(socket ? in_this_process(*socket) : kNowhere);
        set_log_sink(socket ? &send_event : nullptr);
      },
      nb::arg("socket").none(),
      "Sends events to a socket of packets, which stays open from then on; None: to standard "
      "error.");
  m.def(
      "_set_log_level",
      [](std::string_view word) {
        const auto level = log_level_named(word);
        if (!level) raise(Code::invalid_argument, fmt::format("no level '{}'", word));
        set_log_level(*level);
      },
      nb::arg("level"), "The level up to which events are logged.");
  m.def("_log_level", [] { return name(log_level()); }, "The level up to which events are logged.");
  m.def(
      "_log_event",
      [](std::string_view level, std::string_view message) {
        const auto of = log_level_named(level);
        if (!of) raise(Code::invalid_argument, fmt::format("no level '{}'", level));
        log_event(*of, "python", {}, [&] { return std::string(message); });
      },
      nb::arg("level"), nb::arg("message"), nb::call_guard<nb::gil_scoped_release>(),
      "Logs an event, as the library does.");
}

}  // namespace reshard::python
