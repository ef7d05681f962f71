// SPDX-License-Identifier: Apache-2.0
// The class Session.
#include <fmt/format.h>

#include "python/src/collectable.h"
#include "python/src/sessions/session.h"
#include "python/src/values.h"
#include "reshard/base/hash.h"

namespace reshard::python {
namespace {

constexpr Index kStaging = Index{64} << 20;

/// In place of an argument that is not given.
nb::object not_given() { return nb::module_::import_("builtins").attr("Ellipsis"); }
nb::object given(const nb::object& argument) {
  return argument.is(not_given()) ? nb::object() : argument;
}

void make_session(TensorSession* self, std::shared_ptr<Group> group, nb::object source,
                  nb::object target, nb::object source_tensors, nb::object target_tensors,
                  nb::object back_tensors, std::string buffering, std::string verify,
                  std::string convert, std::string path, std::string routes, std::string host,
                  int threads, Index staging_bytes, double timeout, const Names& ignore,
                  const Names& only, bool replan, bool snapshot, nb::object trace,
                  nb::object on_phase, nb::object published, nb::object stream) {
  new (self) TensorSession(std::move(group), {.source = std::move(source),
                                              .source_tensors = std::move(source_tensors),
                                              .target = std::move(target),
                                              .target_tensors = std::move(target_tensors),
                                              .back_tensors = std::move(back_tensors),
                                              .stream = std::move(stream),
                                              .buffering = std::move(buffering),
                                              .verify = std::move(verify),
                                              .convert = std::move(convert),
                                              .path = std::move(path),
                                              .routes = std::move(routes),
                                              .host = std::move(host),
                                              .threads = threads,
                                              .staging_bytes = staging_bytes,
                                              .timeout = timeout,
                                              .ignore = ignore.names,
                                              .only = only.names,
                                              .replan = replan,
                                              .snapshot = snapshot,
                                              .trace = std::move(trace),
                                              .on_phase = std::move(on_phase),
                                              .published = std::move(published)});
}

void update_session(TensorSession& self, const nb::object& source, const nb::object& target,
                    const nb::object& source_tensors, const nb::object& target_tensors,
                    const nb::object& back_tensors) {
  self.update({.source = given(source),
               .source_tensors = given(source_tensors),
               .target = given(target),
               .target_tensors = given(target_tensors),
               .back_tensors = given(back_tensors)});
}

constexpr const char* kClassText = R"(Keeps an engine's weights in step with a trainer's.

    with reshard.Session(group, source=source, source_tensors=mine,
                         target=target, target_tensors=theirs) as session:
      for version in range(1, steps + 1):
        train()
        report = session.refit(version)

All ranks of the group make one, once, with the same layouts and options, and then call refit() after
each training step. A refit plans nothing and allocates nothing per tensor. Every rank passes both
layouts, and tensors only for the side or sides that it holds a part of.

group           from join(), local(), from_torch(), from_store() or from_ray()
source, target  Layouts of one model, plain or quantised. `target` may be a list of several, such as
                engines in different roles: every refit brings all of them to its version. Then
                target_tensors and back_tensors are lists, too, with an entry for each
source_tensors  {local tensor name: tensor} of this rank, as layout.local(rank) lists them; a callable
target_tensors  that returns such a dict; or a RankBuffers. None if the rank has none of that side.
                RankBuffers says what is a tensor. They are held until the session ends.
back_tensors    the second copy of the target, for buffering="doubled"
buffering       "in_place": the target is torn during a refit; "doubled": a refit writes the copy that
                readers do not use, and the commit swaps them
verify          "always": every refit verifies before it commits; "never": only verify() does
convert         the side that quantises and dequantises, "receiver" or "sender"
path            "automatic"; "direct": ranks copy from each other's memory; "message"
routes          "direct": ranks of the source send to all; "auto": ranks of the target on other hosts
                also relay what they receive, where a host's network then carries at least a tenth
                less (see docs/routes.md)
host            for routes="auto": any name of this rank's host; "": the operating system's
threads         that copy on the direct path; 0: one for each core
staging_bytes   the most staging memory of this rank, at least 32 KiB, for messages and conversions
timeout         seconds for each step of a call: then DeadlineError, on all ranks
ignore          names or patterns ("*" any characters, "#" digits) of the model's tensors that one side
                may lack
only            names or patterns of the tensors to move; none: all. Others keep their bytes in the
                target
replan          True: refit() plans anew if tensors moved or layouts changed. False: it is an error.
snapshot        True: each refit first copies this rank's sources to host memory of the session, as large
                as they are, and moves the copy, so that the sources are free when refit_async() returns
trace           a file that rank 0 writes after each refit, replacing the last one: a Chrome trace of
                all ranks, which Perfetto opens. All ranks pass one, or none does. See why_slow.
on_phase        called with "begin", "transfer", "check", "commit" and "committed" when this rank
                enters the phase, in the thread that calls refit(). What it raises ends the refit: this
                rank gets the exception whole, the others an AbortedError with its text.
published       a PublishedVersion, so that versions outlive the session; None: one of its own
stream          of a GPU, as for RankBuffers, for tensors there; None: that of the buffers. A refit
                begins after what the stream has then, and is done when the call returns

The constructor is collective: it returns once all ranks have made their sessions. An error on one
rank is an error on all. Raises InvalidArgumentError for tensors that are not what the layout has
(named), layouts of different models, and options that differ between ranks (named); NotFoundError for
a tensor that is missing or that one side lacks; DeadlineError naming ranks that did not come.

Errors of one rank that all share leave the group usable; any other ends it. Ctrl-C ends a wait within
a tenth of a second: KeyboardInterrupt here, AbortedError on the other ranks, and the group has ended.
One thread at a time; target_version() at any time. A process that was forked after prepare gets an
InvalidArgumentError. At the end of a with block the session ends; if an exception that the other
ranks do not share ends the block, the group is aborted, so that they do not wait in vain.)";

constexpr const char* kRefitText = R"(Collective. Brings every rank's target to `version`.

All ranks pass the same version; it must be above every target's. The sources must not be written
meanwhile. Returns once every rank has committed. `progress` is a callable (phase, bytes done, bytes
in all), True for a bar of tqdm, or False. `stream` takes the place of the session's in this call:
tensors of a GPU are read and written after the work that it has now, and when the call returns, all
is done on every stream; no other work of the GPU is waited for.

Tensors that moved, were resized or freed since the last call are found before anything happens: an
InvalidArgumentError on all ranks names rank and tensor, and the session stays usable. So it does if
versions differ. After a later error a target in place is torn, and a doubled one still has its old
version whole: CorruptError if verification failed (the group stays usable), AbortedError or
DeadlineError otherwise.)";

constexpr const char* kAsyncText =
    R"(Collective. refit() in a thread of its own: returns a PendingRefit at once.

    pending = session.refit_async(version)   # on every rank
    ...                                      # here the engine serves, and the trainer reads its weights
    pending.wait_sources_free()              # from here on the trainer may write them
    report = pending.result()                # or: await pending

With the session's option snapshot=True it returns once the snapshot is complete, and the sources are
free. Until the refit is done, the group takes no other call, target_version() excepted; `on_phase` and
`progress` are called in the refit's thread. Errors are those of refit(), and are raised by result(),
or at the end of a with block if nobody has asked. Ctrl-C does not end the refit; abort() of the group
does.)";

constexpr const char* kPendingText =
    R"(A refit that runs in a thread of its own, from Session.refit_async().

It is awaitable: `report = await pending`. Any thread may use it.)";

nb::object awaited(const nb::object& self) {
  const nb::object waiting = nb::module_::import_("asyncio").attr("to_thread")(self.attr("result"));
  return waiting.attr("__await__")();
}

void bind_pending(nb::module_& m) {
  nb::class_<AsyncRefit>(m, "PendingRefit", collectable<AsyncRefit>(), kPendingText)
      .def("done", &AsyncRefit::done, "True once the refit has ended. Never waits.")
      .def("sources_free", &AsyncRefit::sources_free,
           "True once no rank reads this rank's sources, so that they may be written: at once with "
           "snapshot=True, otherwise when all ranks have their bytes, and have verified them if "
           "refits verify; also once the refit has failed. Never waits.")
      .def("wait_sources_free", &AsyncRefit::wait_sources_free, nb::arg("timeout") = nb::none(),
           nb::sig("def wait_sources_free(self, timeout: float | None = None) -> bool"),
           "Waits for that, at most `timeout` seconds. False if they are not free then.")
      .def("wait", &AsyncRefit::wait, nb::arg("timeout") = nb::none(),
           nb::sig("def wait(self, timeout: float | None = None) -> bool"),
           "Waits until the refit is done, at most `timeout` seconds. False if it is not then.")
      .def("result", &AsyncRefit::result, nb::arg("timeout") = nb::none(),
           nb::sig("def result(self, timeout: float | None = None) -> SessionReport"),
           "Waits for the end. Raises what refit() raises, and DeadlineError after `timeout` "
           "seconds: the refit goes on then.")
      .def("__await__", &awaited,
           nb::sig("def __await__(self) -> "
                   "collections.abc.Generator[typing.Any, None, SessionReport]"))
      .def("__repr__", &AsyncRefit::text);
}

nb::object rank_or_none(Rank rank) {
  return rank.value() < 0 ? nb::none() : nb::cast(rank.value());
}

nb::object link_of(const WhySlow& why) {
  if (why.link_from.value() < 0) return nb::none();
  nb::dict link;
  link["from"] = why.link_from.value();
  link["to"] = why.link_to.value();
  link["bytes"] = why.link_bytes;
  link["seconds"] = why.link_seconds;
  link["bytes_per_second"] = why.link_bytes_per_second();
  link["fastest_bytes_per_second"] = why.fastest_link_per_second;
  return link;
}

nb::object why_slow_of(const TensorSession& session) {
  const WhySlow* why = session.session().why_slow();
  if (why == nullptr) return nb::none();
  nb::dict out;
  out["seconds"] = why->seconds;
  out["bound_seconds"] = why->bound_seconds;
  out["bound_by"] = why->bound_by;
  out["bound_fraction"] = why->bound_fraction();
  out["slowest_rank"] = rank_or_none(why->slowest_rank);
  out["behind_seconds"] = why->behind_seconds;
  out["waited_seconds"] = why->waited_seconds;
  out["late_rank"] = rank_or_none(why->late_rank);
  out["late_seconds"] = why->late_seconds;
  out["slowest_link"] = link_of(*why);
  out["clock_error_seconds"] = why->clock_error_seconds;
  out["dropped_events"] = why->dropped;
  out["problem"] = why->problem;
  out["text"] = why_slow_text(*why);
  return out;
}

const Session& session_of(const TensorSession& x) { return x.session(); }

nb::object relays_of(const TensorSession& session) {
  const RelaySummary* relays = session.session().relays();
  if (relays == nullptr) return nb::none();
  nb::dict out;
  out["used"] = relays->used ? 1 : 0;
  out["direct_bytes"] = relays->direct_bytes;
  out["busiest_bytes"] = relays->busiest_bytes;
  out["least_bytes"] = relays->least_bytes;
  out["hops"] = relays->hops;
  return out;
}

void bind_properties(nb::class_<TensorSession>& bound) {
  bound.def_prop_ro("group", &TensorSession::group, "The ProcessGroup that it was made with.")
      .def_prop_ro(
          "report", [](TensorSession& x) { return x.report(); },
          "The SessionReport of the last refit that succeeded, or None.")
      .def_prop_ro(
          "published", [](const TensorSession& x) { return x.published_object(); },
          nb::sig("def published(self) -> PublishedVersion"),
          "The PublishedVersion that it writes: the one that was given, or its own.")
      .def_prop_ro(
          "peers", [](const TensorSession& x) { return session_of(x).peers(); },
          "What this rank sends and receives in each refit, ascending by peer.")
      .def_prop_ro(
          "path", [](const TensorSession& x) { return session_of(x).path(); },
          "\"direct\", \"message\", or \"mixed\" if only some pairs of ranks read memory.")
      .def_prop_ro(
          "reason", [](const TensorSession& x) { return session_of(x).reason(); },
          "Why the path is \"message\" or \"mixed\" although it was not asked for; else empty.")
      .def_prop_ro(
          "digest", [](const TensorSession& x) { return hex(session_of(x).digest()); },
          "16 hexadecimal digits, equal on all ranks; they change with any layout, option "
          "or address.")
      .def_prop_ro(
          "staging_bytes", [](const TensorSession& x) { return session_of(x).staging_bytes(); },
          "Of staging memory that the session holds on this rank.")
      .def_prop_ro(
          "conversions", [](const TensorSession& x) { return session_of(x).conversions(); },
          "How many tensors take which route.")
      .def_prop_ro("relays", &relays_of, nb::sig("def relays(self) -> dict[str, int] | None"),
                   "Bytes over network interfaces where routes=\"auto\" could choose, equal on all "
                   "ranks: `used` (1 if ranks relay), `direct_bytes`, `busiest_bytes`, "
                   "`least_bytes`, `hops` (docs/routes.md). None: all routes are direct.")
      .def_prop_ro("why_slow", &why_slow_of,
                   nb::sig("def why_slow(self) -> dict[str, typing.Any] | None"),
                   "What the trace of the last refit says, equal on all ranks; None without a "
                   "trace. The keys are those of docs/trace.md, and `text`, some lines for people.")
      .def_prop_ro("closed", &TensorSession::closed,
                   "True after close(), and after the end of a with block.");
}

void bind_calls(nb::class_<TensorSession>& bound) {
  const nb::object ellipsis = not_given();
  bound
      .def("refit", &TensorSession::refit, nb::arg("version"), nb::kw_only(),
           nb::arg("progress") = false, nb::arg("stream") = nb::none(),
           nb::sig("def refit(self, version: int, *, progress: "
                   "collections.abc.Callable[[str, int, int], object] | bool | None = False, "
                   "stream: typing.Any = None) -> SessionReport"),
           kRefitText)
      .def("refit_async", &TensorSession::refit_async, nb::arg("version"), nb::kw_only(),
           nb::arg("progress") = false, nb::arg("stream") = nb::none(), nb::keep_alive<0, 1>(),
           nb::sig("def refit_async(self, version: int, *, progress: "
                   "collections.abc.Callable[[str, int, int], object] | bool | None = False, "
                   "stream: typing.Any = None) -> PendingRefit"),
           kAsyncText)
      .def("verify", &TensorSession::verify,
           "Collective. Verifies the targets: against the sources as they are now, or against what "
           "the last commit recorded if the option is verify=\"always\". CorruptError names the "
           "tensor and leaves the group usable.")
      .def(
          "target_version",
          [](const TensorSession& x) { return x.published().version().target_version(); },
          "The TargetVersion of this rank's target; \"empty\" if it has none. Any thread.")
      .def("update", &update_session, nb::kw_only(), nb::arg("source") = ellipsis,
           nb::arg("target") = ellipsis, nb::arg("source_tensors") = ellipsis,
           nb::arg("target_tensors") = ellipsis, nb::arg("back_tensors") = ellipsis,
           nb::sig("def update(self, *, source: Layout = ..., "
                   "target: Layout | collections.abc.Sequence[Layout] = ..., "
                   "source_tensors: typing.Any = ..., target_tensors: typing.Any = ..., "
                   "back_tensors: typing.Any = ...) -> None"),
           "Replaces layouts or tensors of this rank; what is not given stays. Not collective: the "
           "next refit() tells all ranks, and plans anew or fails, as the option `replan` says.")
      .def("close", &TensorSession::close,
           "Ends the session on this rank and lets go of its tensors; the group lives on. "
           "Idempotent.")
      .def(
          "__enter__", [](nb::object self) { return self; },
          nb::sig("def __enter__(self) -> Session"))
      .def(
          "__exit__",
          [](TensorSession& x, const nb::object& type, const nb::object& error, const nb::object&) {
            x.leave(type, error);
          },
          nb::arg("type").none(), nb::arg("error").none(), nb::arg("traceback").none(),
          nb::sig("def __exit__(self, type: object, error: object, traceback: object) -> None"))
      .def("__repr__", &TensorSession::text);
}

}  // namespace

void bind_session(nb::module_& m) {
  bind_pending(m);
  nb::class_<TensorSession> bound(m, "Session", collectable<TensorSession>(), kClassText);
  bound.def(
      "__init__", &make_session, nb::arg("group"), nb::kw_only(), nb::arg("source").none(),
      nb::arg("target").none(), nb::arg("source_tensors") = nb::none(),
      nb::arg("target_tensors") = nb::none(), nb::arg("back_tensors") = nb::none(),
      nb::arg("buffering") = "in_place", nb::arg("verify") = "never",
      nb::arg("convert") = "receiver", nb::arg("path") = "automatic", nb::arg("routes") = "direct",
      nb::arg("host") = "", nb::arg("threads") = 1, nb::arg("staging_bytes") = kStaging,
      nb::arg("timeout") = 60.0, nb::arg("ignore") = nb::tuple(), nb::arg("only") = nb::tuple(),
      nb::arg("replan") = false, nb::arg("snapshot") = false, nb::arg("trace") = nb::none(),
      nb::arg("on_phase") = nb::none(), nb::arg("published") = nb::none(),
      nb::arg("stream") = nb::none(),
      nb::sig("def __init__(self, group: ProcessGroup, *, source: Layout, "
              "target: Layout | collections.abc.Sequence[Layout], "
              "source_tensors: typing.Any = None, target_tensors: typing.Any = None, "
              "back_tensors: typing.Any = None, "
              "buffering: typing.Literal['in_place', 'doubled'] = 'in_place', "
              "verify: typing.Literal['never', 'always'] = 'never', "
              "convert: typing.Literal['receiver', 'sender'] = 'receiver', "
              "path: typing.Literal['automatic', 'direct', 'message'] = 'automatic', "
              "routes: typing.Literal['direct', 'auto'] = 'direct', host: str = '', "
              "threads: int = 1, staging_bytes: int = 67108864, timeout: float = 60.0, "
              "ignore: str | collections.abc.Iterable[str] = (), "
              "only: str | collections.abc.Iterable[str] = (), replan: bool = False, "
              "snapshot: bool = False, "
              "trace: str | os.PathLike[str] | None = None, "
              "on_phase: collections.abc.Callable[[str], object] | None = None, "
              "published: PublishedVersion | None = None, stream: typing.Any = None) -> None"));
  bind_calls(bound);
  bind_properties(bound);
}

}  // namespace reshard::python
