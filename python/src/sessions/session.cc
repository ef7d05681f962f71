// SPDX-License-Identifier: Apache-2.0
#include "python/src/sessions/session.h"

#include <fmt/format.h>

#include "python/src/sessions/session_call.h"
#include "reshard/base/closest_name.h"

namespace reshard::python {
namespace {

template <class T>
struct Choice {
  const char* name;
  T value;
};

template <class T, std::size_t N>
T choice_of(const char* option, const std::string& text, const Choice<T> (&choices)[N]) {
  std::string known;
  std::vector<std::string_view> words;
  for (const Choice<T>& choice : choices) {
    if (text == choice.name) return choice.value;
    words.emplace_back(choice.name);
    known += fmt::format("{}'{}'", known.empty() ? "" : ", ", choice.name);
  }
  raise(Code::invalid_argument, fmt::format("{}='{}': must be one of {}{}", option, text, known,
                                            did_you_mean(text, words)));
}

constexpr Choice<Buffering> kBuffering[] = {{"in_place", Buffering::in_place},
                                            {"doubled", Buffering::doubled}};
constexpr Choice<VerifyMode> kVerify[] = {{"never", VerifyMode::never},
                                          {"always", VerifyMode::always}};
constexpr Choice<ConversionSide> kConvert[] = {{"receiver", ConversionSide::receiver},
                                               {"sender", ConversionSide::sender}};
constexpr Choice<RefitPath> kPath[] = {{"automatic", RefitPath::automatic},
                                       {"direct", RefitPath::direct},
                                       {"message", RefitPath::message}};

constexpr Choice<RouteMode> kRoutes[] = {{"direct", RouteMode::direct},
                                         {"auto", RouteMode::automatic}};

/// The same without "rank 3: ", which the library adds.
std::string trouble_of(const std::exception_ptr& thrown, Rank me) {
  std::string text = text_of(thrown);
  const std::string rank = fmt::format("rank {}: ", me.value());
  return text.starts_with(rank) ? text.substr(rank.size()) : text;
}

/// True for an exception that ends the process, or what it does, and is nothing to go on after:
/// Ctrl-C, SystemExit.
bool ends_the_call(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const nb::python_error& error) {
    return !error.matches(PyExc_Exception);
  } catch (...) {
    return false;
  }
}

/// Throws it if Python code of the caller's raised it, with the library's error as a note.
void rethrow_of_python(const std::exception_ptr& thrown, const std::string& note) {
  if (thrown == nullptr) return;
  try {
    std::rethrow_exception(thrown);
  } catch (const nb::python_error&) {
    add_note(thrown, note);
    throw;
  } catch (const std::exception&) {
    // All ranks have its text in the library's error.
  }
}

/// The path in a str or a path object. Throws for anything else.
std::string path_of(const nb::object& path) {
  const nb::object text = nb::steal(PyOS_FSPath(path.ptr()));
  if (!text.is_valid()) clear_ordinary();
  if (!text.is_valid() || !nb::isinstance<nb::str>(text))
    throw nb::type_error(fmt::format("trace must be a str, a path or None, not {}",
                                     nb::type_name(path.type()).c_str())
                             .c_str());
  const auto name = nb::cast<std::string>(text);
  if (name.empty()) raise(Code::invalid_argument, "trace: the path is empty");
  return name;
}

bool given(const nb::object& argument) { return argument.is_valid() && !argument.is_none(); }

}  // namespace

TensorSession::TensorSession(std::shared_ptr<Group> group, const SessionArguments& arguments)
    : group_(std::move(group)) {
  SessionOptions options;
  std::exception_ptr wrong;
  {
    // Before anything else: without a group no other rank can be told.
    const Group::Use use(*group_, "Session()");
  }
  try {
    options = options_of(arguments);
    take(arguments);
    sides_ = sides_of(arguments);
    if (sides_.source.layout != nullptr) {
      const ModelSpec& model = sides_.source.layout->side.values->model();
      options.ignore = unwrap(names_of(arguments.ignore, "ignore", model));
      options.only = unwrap(names_of(arguments.only, "move", model));
    }
    look(sides_, stream_);
  } catch (...) {
    wrong = std::current_exception();
    sides_.source.trouble = trouble_of(wrong, group_->rank());
    if (ends_the_call(wrong)) {
      group_->abort(fmt::format("Session() was left: {}", sides_.source.trouble));
      throw;
    }
  }
  try {
    prepare(std::move(options), wrong == nullptr);
  } catch (const Raised&) {
    if (wrong == nullptr) throw;
  }
  if (wrong != nullptr) std::rethrow_exception(wrong);
  planned_ = sides_;
  group_->add(this);
}

TensorSession::~TensorSession() {
  group_->remove(this);
  finish();
}

SessionOptions TensorSession::options_of(const SessionArguments& arguments) {
  SessionOptions options;
  options.refit.path = choice_of("path", arguments.path, kPath);
  options.refit.staging_bytes = arguments.staging_bytes;
  options.refit.seconds = arguments.timeout;
  options.refit.threads = arguments.threads;
  options.buffering = choice_of("buffering", arguments.buffering, kBuffering);
  options.verify = choice_of("verify", arguments.verify, kVerify);
  options.convert = choice_of("convert", arguments.convert, kConvert);
  options.routes = choice_of("routes", arguments.routes, kRoutes);
  options.host = arguments.host;
  options.replan = arguments.replan;
  options.snapshot = arguments.snapshot;
  if (given(arguments.trace)) options.trace.path = path_of(arguments.trace);
  options.refit.progress = [this](std::string_view phase, Index done, Index total) {
    return call_ == nullptr || call_->progress()(phase, done, total);
  };
  options.on_phase = [this](SessionPhase phase) -> Result<> { return call_->enter(phase); };
  return options;
}

void TensorSession::take(const SessionArguments& arguments) {
  stream_ = arguments.stream;
  if (given(arguments.on_phase) && PyCallable_Check(arguments.on_phase.ptr()) == 0)
    throw nb::type_error("on_phase must be a callable or None");
  on_phase_ = arguments.on_phase;
  if (given(arguments.published) && !nb::isinstance<PublishedWord>(arguments.published))
    throw nb::type_error("published must be a reshard.PublishedVersion or None");
  published_object_ = given(arguments.published) ? arguments.published
                                                 : nb::cast(std::make_unique<PublishedWord>());
  published_ = &nb::cast<PublishedWord&>(published_object_);
}

void TensorSession::prepare(SessionOptions options, bool usable) {
  const Group::Use use(*group_, "Session()");
  Call call(*this, nb::bool_(false));
  if (!usable) options = {};
  try {
    interruptible(
        [&] {
          session_.emplace(
              unwrap(Session::prepare(use.data(), use.control(), side_of(sides_.source),
                                      targets_of(sides_), std::move(options))));
        },
        [&] { call.cancel(); });
  } catch (const Raised& raised) {
    call.rethrow(raised);
    throw;
  }
}

const Session& TensorSession::session() const {
  group_->check_process("the session");
  if (!session_) raise(Code::invalid_argument, "the session is closed");
  if (in_progress()) raise(Code::invalid_argument, "refit_async() of this session is in progress");
  return *session_;
}

std::exception_ptr TensorSession::look_again(const nb::object& stream) {
  std::exception_ptr refused;
  std::string trouble;
  try {
    look(sides_, given(stream) ? stream : stream_);
  } catch (...) {
    refused = std::current_exception();
    trouble = trouble_of(refused, group_->rank());
    if (ends_the_call(refused)) {
      group_->abort(fmt::format("the call was left: {}", trouble));
      throw;
    }
  }
  if (trouble != sides_.source.trouble) {
    sides_.source.trouble = std::move(trouble);
    session_->update(side_of(sides_.source), targets_of(sides_));
  }
  return refused;
}

void TensorSession::run(Call& call, const std::exception_ptr& refused,
                        const std::function<void()>& work) {
  failed_together_ = false;
  try {
    interruptible(work, [&] { call.cancel(); });
  } catch (const Raised& raised) {
    call.rethrow(raised);
    failed_together_ = true;
    rethrow_of_python(refused, raised.error().message);
    throw;
  }
}

SessionReport TensorSession::refit(std::int64_t version, const nb::object& progress,
                                   const nb::object& stream) {
  const Group::Use use(*group_, "refit()");
  take_result();
  (void)session();
  const std::exception_ptr refused = look_again(stream);
  Call call(*this, progress);
  run(call, refused, [&] { report_ = unwrap(session_->refit(version)); });
  if (report_->plan_seconds > 0) planned_ = sides_;
  return *report_;
}

void TensorSession::verify() {
  const Group::Use use(*group_, "verify()");
  take_result();
  (void)session();
  const std::exception_ptr refused = look_again({});
  Call call(*this, nb::bool_(false));
  run(call, refused, [&] { unwrap(session_->verify()); });
}

void TensorSession::update(const SessionArguments& arguments) {
  const Group::Use use(*group_, "update()");
  take_result();
  (void)session();
  Sides sides = sides_of(arguments);
  look(sides, stream_);
  session_->update(side_of(sides.source), targets_of(sides));
  sides_ = std::move(sides);
}

std::string TensorSession::text() const {
  if (!session_) return "<reshard.Session: closed>";
  if (in_progress()) return "<reshard.Session: refit_async() in progress>";
  std::string targets;
  for (const Side& target : sides_.targets)
    targets += (targets.empty() ? "" : " and ") + target.layout->stored().name();
  return fmt::format(
      "<reshard.Session: rank {} of {}, {} to {}, {} path, target {}>", group_->rank().value(),
      group_->size(), sides_.source.layout->stored().name(), targets, session_->path(),
      sides_.has_target() ? reshard::python::text_of(published_->version().target_version())
                          : "elsewhere");
}

void TensorSession::close() {
  if (!session_) return;
  if (!group_->closed()) {
    const Group::Use use(*group_, "close()");
    take_result();
    group_->remove(this);
  }
  finish();
}

void TensorSession::shut() { finish(); }

void TensorSession::finish() {
  if (session_) {
    try {
      group_->check_process("");
      if (in_progress()) group_->abort("the session was dropped during refit_async()");
      take_result();
      group_->settle();
      session_.reset();
    } catch (const Raised&) {
      // A session of the parent: its threads are not here, so it is left as it is.
      new Session(std::move(*session_));
      if (async_ != nullptr) new PendingRefit(*async_->refit_);
      async_ = nullptr;
      (void)async_call_.release();
      (void)async_use_.release();
      session_.reset();
    }
  }
  const Sides sides = std::exchange(sides_, {}), planned = std::exchange(planned_, {});
  const nb::object on_phase = std::exchange(on_phase_, {}), stream = std::exchange(stream_, {});
}

void TensorSession::leave(const nb::object& type, const nb::object& error) {
  const bool alone =
      !type.is_none() &&
      !(failed_together_ &&
        PyErr_GivenExceptionMatches(type.ptr(),
                                    nb::module_::import_("reshard._errors").attr("Error").ptr()));
  if (alone && !group_->closed())
    group_->abort(fmt::format("left the session: {}: {}", nb::str(type.attr("__name__")).c_str(),
                              nb::str(error).c_str()));
  const std::shared_ptr<AsyncRefit> last = async_;
  try {
    if (last != nullptr) (void)last->wait({});
  } catch (const nb::python_error&) {  // Ctrl-C
    group_->interrupt();
    take_result();
    close();
    throw;
  }
  take_result();
  close();
  if (last != nullptr && last->failed() && type.is_none()) last->rethrow();
}

int TensorSession::traverse(visitproc visit, void* arg) const {
  for (const Sides* sides : {&sides_, &planned_}) {
    Py_VISIT(sides->source.buffers.ptr());
    for (const Side& target : sides->targets) {
      Py_VISIT(target.buffers.ptr());
      Py_VISIT(target.back.ptr());
    }
  }
  Py_VISIT(on_phase_.ptr());
  Py_VISIT(stream_.ptr());
  Py_VISIT(published_object_.ptr());
  return 0;
}

void TensorSession::clear() {
  group_->remove(this);
  finish();
}

}  // namespace reshard::python
