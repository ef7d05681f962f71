// SPDX-License-Identifier: Apache-2.0
// reshard.InProcessRefit: all ranks' memory in this process.
#include "reshard/exec/in_process.h"

#include <fmt/format.h>
#include <unistd.h>

#include "python/src/collectable.h"
#include "python/src/plans/plan.h"
#include "python/src/sessions/gpu_refit.h"
#include "python/src/tensors/buffers.h"
#include "reshard/base/number_text.h"

namespace reshard::python {
namespace {

/// Sets a flag for a scope.
class Running {
 public:
  explicit Running(bool& flag) : flag_(flag) { flag_ = true; }
  ~Running() { flag_ = false; }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  bool& flag_;
};

/// The class reshard.InProcessRefit. Needs the GIL, which run() releases.
class TensorRefit {
 public:
  TensorRefit(std::shared_ptr<const Plan> plan, nb::object source, nb::object target, int threads)
      : plan_(std::move(plan)),
        source_(std::move(source)),
        target_(std::move(target)),
        threads_(threads) {
    // On a GPU a refit quantises; elsewhere it moves what the plan's layouts say, unchanged or
    // cast.
    const bool stored = is_on_gpu() && plan_->pair().quantises();
    check_layout("source", from(), stored ? plan_->source()->stored() : plan_->planner().source());
    check_layout("target", to(), stored ? plan_->target()->stored() : plan_->planner().target());
    expect_usable(check_, {.source = &from().memory(), .target = &to().memory()});
    prepare();
  }
  ~TensorRefit() {
    // Of the parent process: its threads are not here.
    if (::getpid() == process_) return;
    (void)refit_.release();
    (void)gpu_refit_.release();
  }
  TensorRefit(const TensorRefit&) = delete;
  TensorRefit& operator=(const TensorRefit&) = delete;

  RefitReport run(const nb::object& progress, const std::optional<double>& timeout,
                  const nb::object& stream) {
    if (::getpid() != process_)
      raise(Code::invalid_argument,
            fmt::format("the refit belongs to process {}, from which this one was forked; make "
                        "another here",
                        process_));
    if (running_) raise(Code::invalid_argument, "run() is in progress");
    TensorBuffers::Look source = from().look("source ", stream);
    TensorBuffers::Look target = to().look("target ", stream);
    expect_usable(check_, {.source = &source.memory(), .target = &target.memory()});
    from().take(std::move(source));
    to().take(std::move(target));
    if (moved()) prepare();
    if (gpu_refit_ != nullptr) return gpu_refit_->launch();
    ProgressReport report(progress);
    progress_ = report.progress();
    limit_ = timeout ? Deadline::after(std::chrono::duration<double>(*timeout)) : Deadline::never();
    const Running running(running_);
    try {
      return interruptible([&] { return unwrap(refit_->run()); }, [&] { report.cancel(); });
    } catch (const Raised&) {
      report.rethrow();
      if (limit_.expired())
        raise(Code::deadline, fmt::format("the refit took longer than {} s", *timeout));
      throw;
    }
  }

  int traverse(visitproc visit, void* arg) const {
    Py_VISIT(source_.ptr());
    Py_VISIT(target_.ptr());
    return 0;
  }
  void clear() {
    const auto source = std::exchange(source_, {}), target = std::exchange(target_, {});
  }
  std::string text() const {
    return fmt::format("<InProcessRefit: {} to {}>", plan_->planner().source().name(),
                       plan_->planner().target().name());
  }

 private:
  bool is_on_gpu() const { return from().device() != nullptr || to().device() != nullptr; }
  TensorBuffers& from() const { return nb::cast<TensorBuffers&>(source_); }
  TensorBuffers& to() const { return nb::cast<TensorBuffers&>(target_); }

  static void check_layout(const char* side, const TensorBuffers& buffers,
                           const ModelLayout& layout) {
    if (buffers.layout()->stored().digest() != layout.digest())
      raise(Code::invalid_argument,
            fmt::format("the {} buffers are of {}, the plan's {} is {}", side,
                        buffers.layout()->stored().name(), side, layout.name()));
  }

  /// The address of every local tensor.
  std::vector<const std::byte*> addresses() const {
    std::vector<const std::byte*> out;
    for (const TensorBuffers* buffers : {&from(), &to()})
      for (const Rank rank : buffers->memory().ranks())
        for (const SlotId slot : buffers->memory().layout().slots_of(rank))
          out.push_back(buffers->memory().at(rank, slot));
    return out;
  }
  bool moved() const {
    const bool own = from().owns_memory() && to().owns_memory();
    return !own && addresses() != addresses_;
  }

  void prepare() {
    std::vector<const std::byte*> now = addresses();
    std::unique_ptr<InProcessRefit> refit;
    std::unique_ptr<GpuRefit> gpu_refit;
    if (is_on_gpu()) {
      gpu_refit = std::make_unique<GpuRefit>(*plan_, from(), to());
    } else {
      refit = prepared();
    }
    refit_ = std::move(refit);
    gpu_refit_ = std::move(gpu_refit);
    addresses_ = std::move(now);
  }
  std::unique_ptr<InProcessRefit> prepared() {
    InProcessOptions options;
    options.threads = threads_;
    options.progress = [this](std::string_view phase, Index done, Index total) {
      return !limit_.expired() && (!progress_ || progress_(phase, done, total));
    };
    return std::make_unique<InProcessRefit>(without_gil([&] {
      return unwrap(InProcessRefit::prepare(plan_->planner(), from().memory(), to().memory(),
                                            std::move(options)));
    }));
  }

  std::shared_ptr<const Plan> plan_;
  nb::object source_, target_;
  const int threads_;
  const pid_t process_ = ::getpid();
  bool running_ = false;
  Deadline limit_ = Deadline::never();
  Progress progress_;
  MemoryCheck check_;
  std::vector<const std::byte*> addresses_;  ///< that refit_ or gpu_refit_ uses.
  std::unique_ptr<InProcessRefit> refit_;
  std::unique_ptr<GpuRefit> gpu_refit_;  ///< instead, if all memory is on a GPU.
};

}  // namespace

void bind_in_process(nb::module_& m) {
  nb::class_<RefitReport>(m, "RefitReport", "What one refit moved.")
      .def_ro("seconds", &RefitReport::seconds, "Of the whole call.")
      .def_ro("bytes", &RefitReport::bytes, "Delivered to the target's tensors.")
      .def_ro("copies", &RefitReport::copies, "Memory copies, after coalescing.")
      .def("__repr__", [](const RefitReport& x) {
        return fmt::format("<RefitReport: {} in {}, {} copies>", human_bytes(x.bytes),
                           human_seconds(x.seconds), x.copies);
      });
  nb::class_<TensorRefit>(m, "InProcessRefit", collectable<TensorRefit>(),
                          R"(A refit between ranks whose memory is all in this process.

    refit = reshard.InProcessRefit(plan, source_buffers, target_buffers)
    report = refit.run()

Plain copies by some threads (0: one for each core), without messages or staging. Prepared once, run
after every step; run() plans nothing. Tensors that moved between two runs are found, and used where
they are now, after the same checks; a run that is refused changes nothing. For versions and
verification, and for quantised layouts on the host, make Sessions on reshard.local(n).

Where both sides are on one GPU, the GPU copies, converts and quantises: run() gives its stream a few
launches, whatever the number of tensors, after the work that the stream has, and returns without
waiting. What the stream is given later sees the new weights. Keep the object until then.

Raises InvalidArgumentError for buffers of other layouts, tensors that may not be written, and tensors
that share memory (named); UnsupportedError for one side on a GPU and the other elsewhere.)")
      .def(
          "__init__",
          [](TensorRefit* self, std::shared_ptr<const Plan> plan, const nb::object& source,
             const nb::object& target, int threads) {
            if (!nb::isinstance<TensorBuffers>(source) || !nb::isinstance<TensorBuffers>(target))
              throw nb::type_error("source and target must be RankBuffers");
            new (self) TensorRefit(std::move(plan), source, target, threads);
          },
          nb::arg("plan"), nb::arg("source"), nb::arg("target"), nb::kw_only(),
          nb::arg("threads") = 0,
          nb::sig("def __init__(self, plan: Plan, source: RankBuffers, target: RankBuffers, *, "
                  "threads: int = 0) -> None"))
      .def("run", &TensorRefit::run, nb::kw_only(), nb::arg("progress") = false,
           nb::arg("timeout") = nb::none(), nb::arg("stream") = nb::none(),
           nb::sig("def run(self, *, progress: collections.abc.Callable[[str, int, int], object] | "
                   "bool | None = False, timeout: float | None = None, stream: typing.Any = None) "
                   "-> RefitReport"),
           R"(Moves all bytes. Ctrl-C ends it, as does `timeout` in seconds or a progress callable
that returns False (AbortedError): the target's bytes are then undefined.

stream  of the GPU that has the tensors, as for RankBuffers; None: that of the buffers. If source and
        target have two, the target's runs the refit after what both have, and the source's waits for
        it. A refit on a GPU ignores `progress` and `timeout`, since nothing is waited for; the
        report's seconds are those of this call.)")
      .def("__repr__", &TensorRefit::text);
}

}  // namespace reshard::python
