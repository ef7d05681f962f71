// SPDX-License-Identifier: Apache-2.0
// The class ProcessGroup, and join() and local().
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "python/src/sessions/group.h"
#include "python/src/values.h"
#include "reshard/transport/registry.h"

namespace reshard::python {
namespace {

using SharedGroup = std::shared_ptr<Group>;

/// The groups of this process that are open, for the end of the interpreter. Guarded by the GIL.
std::vector<std::weak_ptr<Group>>& open_groups() {
  static std::vector<std::weak_ptr<Group>> all;
  return all;
}
/// The process whose rank 0 serves a group, or 0.
std::atomic<pid_t> serving_process = 0;

Deadline deadline_after(double seconds) {
  return Deadline::after(std::chrono::duration<double>(seconds));
}

Secret secret_of(const std::optional<std::string>& text, const std::optional<std::string>& file) {
  if (text && file) raise(Code::invalid_argument, "join: give secret or secret_file, not both");
  if (file) return unwrap(Secret::from_file(*file));
  return text ? unwrap(Secret::from_text(*text)) : Secret();
}

/// The rank and size that are not given, from the launcher's environment.
std::pair<int, int> place_of(std::optional<int> rank, std::optional<int> size) {
  if (rank && size) return {*rank, *size};
  const std::optional<Launched> found = unwrap(launched());
  if (!found)
    raise(Code::invalid_argument,
          "join: no rank and size, and no launcher (mpirun, srun, torchrun) whose environment has "
          "them");
  return {rank.value_or(found->rank), size.value_or(found->size)};
}

/// TransportOptions::gpu.
int gpu_number(const std::optional<int>& gpu) {
  if (gpu && *gpu < 0)
    raise(Code::invalid_argument, fmt::format("join: gpu {}: must be 0 or more, or None", *gpu));
  return gpu.value_or(-1);
}

/// The descriptor of a socket, or of anything else with fileno().
int descriptor_of(nb::handle socket) {
  const int fd = PyObject_AsFileDescriptor(socket.ptr());
  if (fd < 0) throw nb::python_error();
  return fd;
}

/// A join in progress, which another thread may cancel.
struct Joining {
  RendezvousOptions options;
  std::string transport;
  TransportOptions transport_options;
  ProcessGroup parts;
  std::atomic<bool> cancelled = false;
  std::atomic<ControlPlane*> joined = nullptr;

  void run() {
    options.gives_up = [this] { return cancelled ? std::string("interrupted") : std::string(); };
    parts.control = unwrap(join(options));
    joined = parts.control.get();
    if (cancelled) raise(Code::aborted, "interrupted");
    transport_options.deadline = options.deadline;
    parts.transport = unwrap(make_transport(transport, *parts.control, transport_options));
  }
  void cancel() {
    cancelled = true;
    if (ControlPlane* control = joined) control->abort("interrupted by a signal");
  }
};

SharedGroup join_group_at(const std::string& url, std::optional<int> rank, std::optional<int> size,
                          const std::optional<std::string>& secret,
                          const std::optional<PathArgument>& secret_file,
                          const std::string& transport, const std::string& job, double timeout,
                          const std::map<std::string, std::string>& settings,
                          const std::string& interface, const std::optional<int>& gpu,
                          const std::optional<nb::object>& listener) {
  const auto [my_rank, my_size] = place_of(rank, size);
  Joining joining;
  joining.options.url = url;
  joining.options.job = job;
  joining.options.rank = Rank(my_rank);
  joining.options.size = my_size;
  joining.options.listener = listener ? descriptor_of(*listener) : -1;
  joining.options.secret =
      secret_of(secret, secret_file ? std::optional(secret_file->path.string()) : std::nullopt);
  for (const auto& [name, value] : settings) joining.options.settings.push_back({name, value});
  joining.options.settings.push_back({"transport", transport});
  joining.options.deadline = deadline_after(timeout);
  joining.transport = transport;
  joining.transport_options.interface = interface;
  joining.transport_options.gpu = gpu_number(gpu);
  // A name that no rank can use is an error before any of them waits.
  const auto row = find_transport(transport);
  if (!row)
    raise(Code::invalid_argument, fmt::format("transport {}: no such transport; known: {}",
                                              transport, fmt::join(transport_names(), ", ")));
  if (my_rank == 0) serving_process = ::getpid();
  interruptible([&] { joining.run(); }, [&] { joining.cancel(); });
  return adopt_group(std::move(joining.parts), transport);
}

std::vector<SharedGroup> local_groups(int size) {
  InprocGroup all = unwrap(InprocGroup::create(size));
  std::vector<SharedGroup> groups;
  for (int r = 0; r < size; ++r) {
    ProcessGroup parts{unwrap(all.control(Rank(r))), unwrap(all.transport(Rank(r)))};
    groups.push_back(adopt_group(std::move(parts), "inproc"));
  }
  return groups;
}

nb::list all_gather(Group& group, const nb::bytes& mine, double timeout) {
  const Group::Use use(group, "all_gather()");
  const std::span bytes(reinterpret_cast<const std::byte*>(mine.c_str()), mine.size());
  const auto all = interruptible(
      [&] { return unwrap(use.control().all_gather(bytes, deadline_after(timeout))); },
      [&] { group.interrupt(); });
  nb::list out;
  for (const auto& each : all)
    out.append(nb::bytes(reinterpret_cast<const char*>(each.data()), each.size()));
  return out;
}

void barrier(Group& group, double timeout) {
  const Group::Use use(group, "barrier()");
  interruptible([&] { unwrap(use.control().barrier(deadline_after(timeout))); },
                [&] { group.interrupt(); });
}

void quiesce(Group& group, double timeout) {
  const Group::Use use(group, "quiesce()");
  interruptible([&] { unwrap(use.control().quiesce(deadline_after(timeout))); },
                [&] { group.interrupt(); });
}

void leave(Group& group, const nb::object& type, const nb::object& error) {
  if (!type.is_none() && !group.closed())
    group.abort(
        fmt::format("{}: {}", nb::str(type.attr("__name__")).c_str(), nb::str(error).c_str()));
  group.close();
}

/// Ends what is still open when the interpreter ends, so that no thread of ours outlives it and no
/// other rank waits for this one.
void shut_all() {
  const auto groups = std::exchange(open_groups(), {});
  // What a thread still holds when the interpreter ends is not a leak.
  if (!groups.empty()) nb::set_leak_warnings(false);
  for (const auto& weak : groups)
    if (const SharedGroup group = weak.lock()) group->shut();
  const auto ten_seconds = std::chrono::seconds(10);
  if (serving_process == ::getpid())
    interruptible([&] { (void)finish_serving(Deadline::after(ten_seconds)); },
                  [] { std::_Exit(130); });
  end_interpreter();
}

constexpr const char* kGroupText = R"(The ranks that refit together, seen from one of them.

Made by join() between processes, by local() between threads of this one, and by from_torch(),
from_ray() or from_store() where the processes know each other already. A context manager: it closes the group at
its end, and aborts it before if an exception ends it, so that no other rank waits in vain.

One call at a time uses a group, from any thread; abort(), status() and lost() may be called at any
time. After an abort the group has ended for all its ranks: join a new one, with another `job`.)";

constexpr const char* kJoinText = R"(Joins a group of processes; returns once all its ranks have.

url          "tcp://HOST:PORT": rank 0 listens there, all others connect; needs a secret.
             "file:///FOLDER": a folder that all processes can access; needs none.
rank, size   of this process and of the group; None: as mpirun, srun or torchrun say in the
             environment
secret       16 characters or more, equal on all ranks, or
secret_file  a file that only its owner may read, with the secret in its first line
transport    moves the weights: "shm" within a host; "mpi", "gloo" or "ucx" between hosts; "nccl" or
             "nvshmem" between GPUs (transports() lists them)
job          the name of the group: groups with different names at one URL do not mix
timeout      seconds until DeadlineError, which names the ranks that did not come
settings     {name: value} that must be equal on all ranks; a difference is an error that shows both
interface    network interface or address of the transport; "": the one that reaches rank 0
gpu          the number of the GPU, as CUDA counts those that this process sees, whose memory messages
             may be in: needed by "nccl" and "nvshmem", and of use with "ucx" and "mpi" if their library
             is CUDA-aware. None: messages pass through host memory
listener     on rank 0, with tcp://: a socket that listens already, in place of one at HOST:PORT; a
             caller that tells the others the address itself can so take any free port. It stays the
             caller's.

The processes may start in any order. The control plane is encrypted with the secret; the weights
travel unencrypted. The process of rank 0 serves the others until they have left: at its end Python
waits for them, ten seconds at most.

Raises InvalidArgumentError for a rank that is taken and for settings that differ, AbortedError for
another secret, UnsupportedError for a transport that does not work here (with the reason).)";

void bind_class(nb::module_& m) {
  nb::class_<Group>(m, "ProcessGroup", kGroupText)
      .def_prop_ro("rank", &Group::rank, "Of this member, from 0.")
      .def_prop_ro("size", &Group::size, "The number of ranks; they are 0 to size - 1.")
      .def_prop_ro("transport", &Group::transport_name,
                   "The name of what moves the bytes; \"inproc\" between threads.")
      .def_prop_ro("closed", &Group::closed, "True after close().")
      .def("status", &Group::status,
           "Returns None while the group lives; raises AbortedError with the rank and the reason "
           "once any rank has aborted or died. Cheap; waits for nothing.")
      .def("lost", &Group::lost, "The ranks that are known to have died or closed, ascending.")
      .def("abort", &Group::abort, nb::arg("reason"), nb::call_guard<Unlocked>(),
           "Ends the group: all waits of all ranks fail with AbortedError, this rank's number and "
           "the reason. From any thread.")
      .def("barrier", &barrier, nb::kw_only(), nb::arg("timeout") = 60.0,
           "Collective. Returns once every rank has called it. DeadlineError after `timeout` "
           "seconds names those that have not.")
      .def("all_gather", &all_gather, nb::arg("mine"), nb::kw_only(), nb::arg("timeout") = 60.0,
           nb::sig("def all_gather(self, mine: bytes, *, timeout: float = 60.0) -> list[bytes]"),
           "Collective. Returns the bytes of each rank, by rank; for kilobytes, not for weights.")
      .def("quiesce", &quiesce, nb::kw_only(), nb::arg("timeout") = 10.0,
           "Collective, also after an abort. Returns once every rank has called it or has closed: "
           "from then on no other rank uses this rank's memory.")
      .def("close", &Group::close,
           "Closes the sessions of the group and leaves it. Idempotent. Waits of other ranks for "
           "this one fail with AbortedError.")
      .def(
          "__enter__", [](nb::object self) { return self; },
          nb::sig("def __enter__(self) -> ProcessGroup"))
      .def(
          "__exit__",
          [](Group& x, const nb::object& type, const nb::object& error, const nb::object&) {
            leave(x, type, error);
          },
          nb::arg("type").none(), nb::arg("error").none(), nb::arg("traceback").none(),
          nb::sig("def __exit__(self, type: object, error: object, traceback: object) -> None"))
      .def("__repr__", &Group::text);
}

}  // namespace

SharedGroup adopt_group(ProcessGroup parts, const std::string& transport) {
  if (parts.control->rank() == Rank(0)) serving_process = ::getpid();
  auto group = std::make_shared<Group>(std::move(parts), transport);
  std::erase_if(open_groups(), [](const auto& known) {
    const SharedGroup held = known.lock();
    return held == nullptr || held->closed();
  });
  open_groups().push_back(group);
  return group;
}

void bind_group(nb::module_& m) {
  bind_class(m);
  m.def("join", &join_group_at, nb::arg("url"), nb::kw_only(), nb::arg("rank") = nb::none(),
        nb::arg("size") = nb::none(), nb::arg("secret") = nb::none(),
        nb::arg("secret_file") = nb::none(), nb::arg("transport") = "shm",
        nb::arg("job") = "reshard", nb::arg("timeout") = 60.0,
        nb::arg("settings") = std::map<std::string, std::string>(), nb::arg("interface") = "",
        nb::arg("gpu") = nb::none(), nb::arg("listener") = nb::none(), kJoinText);
  m.def("local", &local_groups, nb::arg("size"),
        "Groups for the ranks 0 to size - 1 of one process, in order: each belongs to the thread "
        "that is the rank. Their bytes move within memory, copied once.");
  m.def("shut_groups", &shut_all, "Called when the interpreter ends.");
}

}  // namespace reshard::python
