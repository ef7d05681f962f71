// SPDX-License-Identifier: Apache-2.0
#include "python/src/sessions/session.h"

#include <fmt/format.h>

#include "reshard/base/closest_name.h"

namespace reshard::python {
namespace {

constexpr const char* kSource = "source ";
constexpr const char* kTarget = "target ";
constexpr const char* kBack = "back ";

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

/// One line of what was thrown, for other ranks.
std::string text_of(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Raised& raised) {
    return raised.error().message;
  } catch (const nb::python_error& error) {
    const std::string text = nb::str(error.value()).c_str();
    return fmt::format("{}{}{}", nb::str(error.type().attr("__name__")).c_str(),
                       text.empty() ? "" : ": ", text.substr(0, text.find('\n')));
  } catch (const std::exception& error) {
    return error.what();
  }
}

/// The same without "rank 3: ", which the library adds.
std::string trouble_of(const std::exception_ptr& thrown, Rank me) {
  std::string text = text_of(thrown);
  const std::string rank = fmt::format("rank {}: ", me.value());
  return text.starts_with(rank) ? text.substr(rank.size()) : text;
}

/// Adds a note to the exception that a callback raised: what became of the call.
void add_note(const std::exception_ptr& thrown, const std::string& note) {
  try {
    std::rethrow_exception(thrown);
  } catch (nb::python_error& error) {
    nb::borrow(error.value()).attr("add_note")(note);
  }
}

const TensorBuffers* memory_of(const nb::object& buffers) {
  return buffers.is_valid() ? &nb::cast<const TensorBuffers&>(buffers) : nullptr;
}

std::shared_ptr<const Layout> layout_of(const char* side, const nb::object& given) {
  if (!nb::isinstance<Layout>(given))
    throw nb::type_error(
        fmt::format("{}must be a reshard.Layout, not {}", side, nb::type_name(given.type()).c_str())
            .c_str());
  return nb::cast<std::shared_ptr<const Layout>>(given);
}

/// Of a str or a path object. Throws for anything else.
std::string path_of(const nb::object& path) {
  const nb::object text = nb::module_::import_("os").attr("fspath")(path);
  if (!nb::isinstance<nb::str>(text)) throw nb::type_error("trace must be a str or a path");
  const auto name = nb::cast<std::string>(text);
  if (name.empty()) raise(Code::invalid_argument, "trace: the path is empty");
  return name;
}

bool given(const nb::object& argument) { return argument.is_valid() && !argument.is_none(); }

}  // namespace

/// What a collective call has while it lasts: its callbacks.
class TensorSession::Call {
 public:
  Call(TensorSession& session, const nb::object& progress)
      : session_(session), on_phase_(session.on_phase_), progress_(progress) {
    session_.call_ = this;
  }
  ~Call() { session_.call_ = nullptr; }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  Result<> enter(SessionPhase phase) {
    std::string why;
    const bool went_on = on_phase_.call([&](const nb::object& function) {
      try {
        function(name(phase));
      } catch (...) {
        why = text_of(std::current_exception());
        throw;
      }
    });
    if (went_on) return {};
    return fail(Code::aborted, fmt::format("on_phase('{}') raised {}", name(phase), why));
  }
  Progress& progress() { return progress_function_; }
  void cancel() {
    progress_.cancel();
    session_.group_->interrupt();
  }
  /// Throws what a callback raised, with the library's error as a note; else nothing.
  void rethrow(const Raised& raised) {
    try {
      on_phase_.rethrow();
      progress_.rethrow();
    } catch (nb::python_error&) {
      add_note(std::current_exception(), raised.error().message);
      throw;
    }
  }

 private:
  TensorSession& session_;
  Callback on_phase_;
  ProgressReport progress_;
  Progress progress_function_ = progress_.progress();
};

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
    check_memory();
    // Of buffers that were given, the stream is known now.
    if (given(stream_))
      for (const nb::object& buffers : {source_.buffers, target_.buffers, target_.back})
        if (buffers.is_valid()) nb::cast<TensorBuffers&>(buffers).refresh("", stream_);
  } catch (...) {
    wrong = std::current_exception();
    source_.trouble = trouble_of(wrong, group_->rank());
  }
  try {
    prepare(std::move(options), wrong == nullptr);
  } catch (const Raised&) {
    if (wrong == nullptr) throw;
  }
  if (wrong != nullptr) std::rethrow_exception(wrong);
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
  options.ignore = arguments.ignore;
  options.replan = arguments.replan;
  if (given(arguments.trace)) options.trace.path = path_of(arguments.trace);
  options.refit.progress = [this](std::string_view phase, Index done, Index total) {
    return call_ == nullptr || call_->progress()(phase, done, total);
  };
  options.on_phase = [this](SessionPhase phase) -> Result<> { return call_->enter(phase); };
  return options;
}

void TensorSession::take(const SessionArguments& arguments) {
  if (arguments.stream.is_valid()) stream_ = arguments.stream;
  Side source = source_, target = target_;
  source.trouble = target.trouble = "";
  const auto take_side = [&](Side& side, const char* name, const nb::object& layout,
                             const nb::object& tensors) {
    if (layout.is_valid()) side.layout = layout_of(name, layout);
    if (layout.is_valid() || tensors.is_valid())
      side.buffers = buffers_of(tensors, side.layout, group_->rank(), name, stream_);
    if (side.buffers.is_valid()) side.layout = memory_of(side.buffers)->layout();
  };
  take_side(source, kSource, arguments.source, arguments.source_tensors);
  take_side(target, kTarget, arguments.target, arguments.target_tensors);
  if (arguments.back_tensors.is_valid())
    target.back = buffers_of(arguments.back_tensors, target.layout, group_->rank(), kBack, stream_);
  if (target.back.is_valid() && memory_of(target.back)->layout() != target.layout)
    raise(Code::invalid_argument,
          "target_tensors and back_tensors are buffers of two Layout "
          "objects; make both with one");
  if (given(arguments.on_phase) && PyCallable_Check(arguments.on_phase.ptr()) == 0)
    throw nb::type_error("on_phase must be a callable or None");
  if (arguments.on_phase.is_valid()) on_phase_ = arguments.on_phase;
  if (given(arguments.published) && !nb::isinstance<PublishedWord>(arguments.published))
    throw nb::type_error("published must be a reshard.PublishedVersion or None");
  if (!published_object_.is_valid()) {
    published_object_ = given(arguments.published) ? arguments.published
                                                   : nb::cast(std::make_unique<PublishedWord>());
    published_ = &nb::cast<PublishedWord&>(published_object_);
  }
  source_ = std::move(source);
  target_ = std::move(target);
}

void TensorSession::check_memory() const {
  const TensorBuffers* source = memory_of(source_.buffers);
  const TensorBuffers* target = memory_of(target_.buffers);
  const TensorBuffers* back = memory_of(target_.back);
  if (target != nullptr) target->check_writable(kTarget);
  if (back != nullptr) back->check_writable(kBack);
  if (source != nullptr && target != nullptr) target->check_apart(kTarget, *source, kSource);
  if (source != nullptr && back != nullptr) back->check_apart(kBack, *source, kSource);
  if (target != nullptr && back != nullptr) back->check_apart(kBack, *target, kTarget);
}

SessionSide TensorSession::side_of(const Side& side, bool is_target) const {
  SessionSide out;
  out.trouble = side.trouble;
  if (side.layout == nullptr) return out;
  if (side.layout->side.quantised != nullptr) {
    out.quantised = side.layout->side.quantised;
  } else {
    out.layout = side.layout->side.values;
  }
  if (const TensorBuffers* buffers = memory_of(side.buffers)) out.buffers = &buffers->memory();
  if (const TensorBuffers* back = memory_of(side.back)) out.back = &back->memory();
  if (is_target && published_ != nullptr) out.published = &published_->version();
  return out;
}

void TensorSession::prepare(SessionOptions options, bool usable) {
  const Group::Use use(*group_, "Session()");
  Call call(*this, nb::bool_(false));
  if (!usable) options = {};
  try {
    interruptible(
        [&] {
          session_.emplace(
              unwrap(Session::prepare(use.data(), use.control(), side_of(source_, false),
                                      side_of(target_, true), std::move(options))));
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
  return *session_;
}

bool TensorSession::look_again(const nb::object& stream) {
  const nb::object& used = given(stream) ? stream : stream_;
  const std::string before = source_.trouble + target_.trouble;
  source_.trouble.clear();
  target_.trouble.clear();
  bool moved = false;
  const auto look = [&](const nb::object& buffers, const char* name) {
    if (buffers.is_valid()) moved |= nb::cast<TensorBuffers&>(buffers).refresh(name, used);
  };
  try {
    look(source_.buffers, kSource);
    look(target_.buffers, kTarget);
    look(target_.back, kBack);
    if (moved) check_memory();
  } catch (...) {
    source_.trouble = trouble_of(std::current_exception(), group_->rank());
  }
  return before != source_.trouble;
}

SessionReport TensorSession::refit(std::int64_t version, const nb::object& progress,
                                   const nb::object& stream) {
  const Group::Use use(*group_, "refit()");
  (void)session();
  if (look_again(stream)) session_->update(side_of(source_, false), side_of(target_, true));
  Call call(*this, progress);
  failed_together_ = false;
  try {
    report_ =
        interruptible([&] { return unwrap(session_->refit(version)); }, [&] { call.cancel(); });
  } catch (const Raised& raised) {
    call.rethrow(raised);
    failed_together_ = true;
    throw;
  }
  return *report_;
}

void TensorSession::verify() {
  const Group::Use use(*group_, "verify()");
  (void)session();
  Call call(*this, nb::bool_(false));
  failed_together_ = false;
  try {
    interruptible([&] { unwrap(session_->verify()); }, [&] { call.cancel(); });
  } catch (const Raised&) {
    failed_together_ = true;
    throw;
  }
}

void TensorSession::update(const SessionArguments& arguments) {
  const Group::Use use(*group_, "update()");
  (void)session();
  take(arguments);
  check_memory();
  session_->update(side_of(source_, false), side_of(target_, true));
}

std::string TensorSession::text() const {
  if (!session_) return "<reshard.Session: closed>";
  return fmt::format("<reshard.Session: rank {} of {}, {} to {}, {} path, target {}>",
                     group_->rank().value(), group_->size(), source_.layout->stored().name(),
                     target_.layout->stored().name(), session_->path(),
                     target_.buffers.is_valid()
                         ? reshard::python::text_of(published_->version().target_version())
                         : "elsewhere");
}

void TensorSession::close() {
  if (!session_) return;
  if (!group_->closed()) {
    const Group::Use use(*group_, "close()");
    group_->remove(this);
  }
  finish();
}

void TensorSession::shut() { finish(); }

void TensorSession::finish() {
  if (session_) {
    try {
      group_->check_process("");
      group_->settle();
      session_.reset();
    } catch (const Raised&) {
      // A session of the parent: its threads are not here, so it is left as it is.
      new Session(std::move(*session_));
      session_.reset();
    }
  }
  const Side source = std::exchange(source_, {}), target = std::exchange(target_, {});
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
  close();
}

int TensorSession::traverse(visitproc visit, void* arg) const {
  for (const Side* side : {&source_, &target_}) {
    Py_VISIT(side->buffers.ptr());
    Py_VISIT(side->back.ptr());
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
