// SPDX-License-Identifier: Apache-2.0
// A session's refit between processes, in turn with the plain executor on the same plan. With a
// format, it quantises at the senders and at the receivers, in turn with the same work done by hand
// (gather the values, quantise them with the kernel, copy them into place). Rank 0 prints one line.
//
//   session_bench <a job, see rank_job.h> [--rounds N] [--path direct|message] [--format mxfp8]
#include <cstring>

#include "bench/common/values.h"
#include "bench/rank_job.h"
#include "reshard/base/check.h"
#include "reshard/convert/reference/quant_areas.h"
#include "reshard/exec/rank_refit.h"
#include "reshard/refit/conversion/routes.h"
#include "reshard/refit/session.h"
#include "reshard/transform/quantise.h"

namespace reshard::bench {
namespace {

/// A session with its own target memory, and the next version.
struct Refitted {
  std::unique_ptr<RankBuffers> target;
  std::optional<Session> session;
  std::int64_t version = 0;
  Contender contender(const RankJob& job, std::string name) {
    return together(job, std::move(name), [this]() -> Result<> {
      RESHARD_TRY(session->refit(version++));
      return {};
    });
  }
};

Result<std::unique_ptr<RankBuffers>> memory_of(const std::shared_ptr<const ModelLayout>& layout,
                                               Rank me) {
  if (!layout->ranks().contains(me)) return nullptr;
  return std::make_unique<RankBuffers>(RESHARD_TRY(
      RankBuffers::allocate(layout, {&me, 1}, {.prefault_threads = 1, .shared = true})));
}

Result<std::unique_ptr<Refitted>> session_of(
    const RankJob& job, const SessionOptions& options,
    const std::shared_ptr<const QuantisedLayout>& quantised) {
  auto out = std::make_unique<Refitted>();
  SessionSide target{.layout = quantised == nullptr ? job.layouts.target : nullptr,
                     .quantised = quantised};
  out->target = RESHARD_TRY(memory_of(target.stored(), job.rank()));
  target.buffers = out->target.get();
  const SessionSide source{.layout = job.layouts.source, .buffers = job.source.get()};
  out->session = RESHARD_TRY(
      Session::prepare(*job.group.transport, *job.group.control, source, target, options));
  return out;
}

/// The same by hand: gather all values, run the kernel, copy into place.
class ByHand {
 public:
  static Result<std::unique_ptr<ByHand>> make(const RankJob& job, const RankRefitOptions& options,
                                              const QuantisedLayout& layout) {
    std::unique_ptr<ByHand> out(new ByHand(job, layout));
    out->scratch_ = RESHARD_TRY(memory_of(layout.stored, job.rank()));
    out->target_ = RESHARD_TRY(memory_of(layout.stored, job.rank()));
    out->gather_ =
        RESHARD_TRY(RankRefit::prepare(*job.planner, job.source.get(), job.target.get(),
                                       *job.group.transport, *job.group.control, options));
    return out;
  }

  Contender contender() {
    return together(job_, "by_hand", [this] { return run(); });
  }

 private:
  ByHand(const RankJob& job, const QuantisedLayout& layout) : job_(job), layout_(layout) {}

  void copy(const RankBuffers& from, SlotId source, SlotId slot) const {
    const Rank me = job_.rank();
    if (const std::byte* at = from.at(me, source); at != nullptr)
      std::memcpy(target_->at(me, slot), at, static_cast<std::size_t>(from.bytes(me, source)));
  }

  Result<> quantise_matrices(const QuantisedLayout::Pair& pair) const {
    const Rank me = job_.rank();
    const Slot& slot = layout_.values->slot(pair.values);
    if (!layout_.values->rank_set(slot.ranks).contains(me)) return {};
    const auto at = [&](SlotId part) {
      return part.value() < 0 ? nullptr : scratch_->at(me, part);
    };
    const auto areas = RESHARD_TRY(reference::areas_of(
        layout_, pair, me,
        {job_.target->at(me, pair.values), at(pair.data), at(pair.scales), at(pair.factor)}));
    for (const auto& [values, quantised] : areas) quantise(values, quantised);
    return {};
  }

  Result<> run() {
    RESHARD_TRY(gather_->run());
    if (job_.target == nullptr) return {};
    for (const QuantisedLayout::Pair& pair : layout_.pairs) RESHARD_TRY(quantise_matrices(pair));
    for (std::size_t s = 0; s < layout_.plain.size(); ++s)
      if (layout_.plain[s].value() >= 0)
        copy(*job_.target, SlotId(static_cast<SlotId::rep>(s)), layout_.plain[s]);
    for (const QuantisedLayout::Pair& pair : layout_.pairs)
      for (const SlotId slot : {pair.data, pair.scales, pair.factor})
        if (slot.value() >= 0) copy(*scratch_, slot, slot);
    return {};
  }

  const RankJob& job_;
  const QuantisedLayout& layout_;
  std::unique_ptr<RankBuffers> scratch_, target_;
  std::optional<RankRefit> gather_;
};

/// The projections of a model, or all matrices if no tensor is named like one.
QuantChoice choice_of(const ModelSpec& model, const QuantFormat& format) {
  QuantChoice choice;
  choice.format = format;
  for (const std::string_view part : {"_proj", ""}) {
    if (!choice.tensors.empty()) break;
    for (const CanonicalTensor& t : model.tensors())
      if (t.shape.size() >= 2 && t.name.find(part) != std::string::npos)
        choice.tensors.insert(t.name);
  }
  return choice;
}

/// The number of bytes in which two memories of a rank differ. @pre both have the same layout
Index different(const Refitted& a, const Refitted& b, Rank me) {
  Index bytes = 0;
  if (a.target == nullptr) return 0;
  for (const SlotId slot : a.target->layout().slots_of(me)) {
    const auto n = static_cast<std::size_t>(a.target->bytes(me, slot));
    if (n > 0 && std::memcmp(a.target->at(me, slot), b.target->at(me, slot), n) != 0)
      bytes += static_cast<Index>(n);
  }
  return bytes;
}

Result<> add_report(const RankJob& job, const Refitted& refitted, const std::string& name,
                    JsonLine& line) {
  const ConversionCounts& counts = refitted.session->conversions();
  line.add("path_" + name, refitted.session->path());
  line.add("at_sender_" + name, counts.at_sender);
  line.add("at_receiver_" + name, counts.at_receiver);
  line.add("staging_bytes_" + name, RESHARD_TRY(job.max(refitted.session->staging_bytes())));
  return {};
}

Result<> run_plain(const RankJob& job, const SessionOptions& options, Rounds rounds) {
  auto raw =
      RESHARD_TRY(RankRefit::prepare(*job.planner, job.source.get(), job.target.get(),
                                     *job.group.transport, *job.group.control, options.refit));
  auto session = RESHARD_TRY(session_of(job, options, nullptr));
  const std::vector<Contender> contenders = {together(job, "refit",
                                                      [&]() -> Result<> {
                                                        RESHARD_TRY(raw.run());
                                                        return {};
                                                      }),
                                             session->contender(job, "session")};
  const auto seconds = RESHARD_TRY(by_turns(contenders, std::move(rounds)));
  JsonLine line;
  const Index delivered = RESHARD_TRY(job.bytes_delivered());
  line.add("bytes", RESHARD_TRY(job.sum(delivered)));
  RESHARD_TRY(add_report(job, *session, "session", line));
  add_seconds(line, contenders, seconds);
  Index checked = 0;
  if (session->target) checked = RESHARD_TRY(check_values(*session->target));
  line.add("checked_bytes", RESHARD_TRY(job.sum(checked)));
  if (job.rank() == Rank{0}) line.print();
  return job.group.control->quiesce(patient());
}

Result<> run_quantised(const RankJob& job, SessionOptions options, const QuantFormat& format,
                       Rounds rounds) {
  const auto layout = std::make_shared<const QuantisedLayout>(RESHARD_TRY(
      quantise_layout(job.layouts.target, choice_of(job.layouts.target->model(), format))));
  options.convert = ConversionSide::receiver;
  auto receiver = RESHARD_TRY(session_of(job, options, layout));
  options.convert = ConversionSide::sender;
  auto sender = RESHARD_TRY(session_of(job, options, layout));
  auto hand = RESHARD_TRY(ByHand::make(job, options.refit, *layout));
  const std::vector<Contender> contenders = {receiver->contender(job, "receiver"),
                                             sender->contender(job, "sender"), hand->contender()};
  const auto seconds = RESHARD_TRY(by_turns(contenders, std::move(rounds)));
  JsonLine line;
  const Index delivered = RESHARD_TRY(job.bytes_delivered());
  line.add("bytes", RESHARD_TRY(job.sum(delivered)));
  line.add("different_bytes", RESHARD_TRY(job.sum(different(*receiver, *sender, job.rank()))));
  RESHARD_TRY(add_report(job, *receiver, "receiver", line));
  RESHARD_TRY(add_report(job, *sender, "sender", line));
  add_seconds(line, contenders, seconds);
  if (job.rank() == Rank{0}) line.print();
  return job.group.control->quiesce(patient());
}

Result<> run(Arguments& arguments) {
  const Index rounds = RESHARD_TRY(arguments.integer("rounds", 7));
  const std::string format_name = arguments.text("format", "");
  const std::string path = arguments.text("path", "automatic");
  SessionOptions options;
  options.refit.seconds = 300;
  if (path == "direct") options.refit.path = RefitPath::direct;
  if (path == "message") options.refit.path = RefitPath::message;
  const RankJob job = RESHARD_TRY(join_job(arguments));
  RESHARD_TRY(arguments.unused());
  if (format_name.empty()) return run_plain(job, options, Rounds(rounds));
  const auto format = quant_format_from_name(format_name);
  if (!format)
    return fail(Code::invalid_argument,
                "no format '" + format_name + "'; there are " + known_quant_formats());
  return run_quantised(job, options, *format, Rounds(rounds));
}

}  // namespace
}  // namespace reshard::bench

int main(int argc, char** argv) {
  return reshard::bench::run_program(argc, argv, reshard::bench::run);
}
