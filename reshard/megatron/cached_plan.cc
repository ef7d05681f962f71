// SPDX-License-Identifier: Apache-2.0
#include "reshard/megatron/cached_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/base/bytes.h"
#include "reshard/base/hash.h"

namespace reshard::megatron {
namespace {

constexpr std::size_t kMaxText = 4096;

std::vector<std::byte> encode(const CallRecord& record) {
  ByteWriter w;
  w.number(static_cast<std::uint64_t>(record.has));
  w.number(record.by_operations);
  w.number(record.service);
  w.number(record.staging_bytes);
  w.number(record.planner);
  w.text(record.call);
  w.text(std::string_view(record.trouble).substr(0, kMaxText));
  w.number(static_cast<std::uint64_t>(record.code));
  return std::move(w).finish();
}

Result<CallRecord> decode(std::span<const std::byte> bytes, std::size_t rank) {
  ByteReader r(bytes, fmt::format("the call record from rank {}", rank));
  CallRecord out;
  out.has = static_cast<CallRecord::Has>(
      r.number(static_cast<std::uint64_t>(CallRecord::Has::all), "what it has"));
  out.by_operations = r.number(1, "whether by operations") == 1;
  out.service = r.number(1, "whether it has a service") == 1;
  out.staging_bytes = r.number(~std::uint64_t{0} >> 1, "bytes of staging");
  out.planner = r.number(~std::uint64_t{0}, "a digest");
  out.call = r.text(kMaxText, "a call");
  out.trouble = r.text(kMaxText, "trouble");
  out.code = static_cast<Code>(r.number(static_cast<std::uint64_t>(Code::aborted), "a code"));
  RESHARD_TRY(r.finish());
  return out;
}

/// This rank's memory of one model as the layout's slots; null if it has no model.
Result<std::unique_ptr<RankBuffers>> bound(Module* module,
                                           const std::shared_ptr<const ModelLayout>& layout,
                                           Rank me) {
  if (module == nullptr) return nullptr;
  auto buffers = std::make_unique<RankBuffers>(layout);
  const auto tensors = get_refit_tensor_dict(*module);
  for (SlotId slot : layout->slots_of(me)) {
    const std::string& name = layout->slot(slot).name;
    const TensorPtr* tensor = tensors->find(name);
    if (tensor == nullptr)
      return fail(Code::not_found,
                  fmt::format("parameter '{}' of the plan is not in the module", name));
    RESHARD_TRY(buffers->bind(me, slot, bytes_of((*tensor)->view)));
  }
  return buffers;
}

}  // namespace

std::uint64_t digest_of_addresses(const ModelCores& cores) {
  Digest digest;
  for (Module* module : {cores.src, cores.tgt}) {
    if (module == nullptr) continue;
    for (const NamedTensor& t : get_refit_tensor_dict(*module)->items())
      digest.add(reinterpret_cast<std::uintptr_t>(t.tensor->view.data));
  }
  return digest.value();
}

std::uint64_t digest_of_buffer_dtypes(Module* module) {
  Digest digest;
  if (module != nullptr)
    for (const BufferPlace& b : get_refit_tensor_dict(*module)->buffers())
      digest.add(static_cast<int>(b.tensor()->view.dtype));
  return digest.value();
}

Result<std::unique_ptr<SessionBinding>> bind_session(const CachedPlan& cached,
                                                     const ModelCores& cores,
                                                     std::shared_ptr<CopyService> service,
                                                     const RefitGroup& group,
                                                     const RankRefitOptions& options) {
  auto out = std::make_unique<SessionBinding>();
  const Planner& planner = *cached.planner;
  auto source = bound(cores.src, planner.shared_source(), group.rank());
  auto target = bound(cores.tgt, planner.shared_target(), group.rank());
  if (!source || !target) {
    const Error error = !source ? source.error() : target.error();
    group.control->abort(error.message);
    return tl::unexpected(error);
  }
  out->source = *std::move(source);
  out->target = *std::move(target);
  out->addresses = digest_of_addresses(cores);
  auto* backend = dynamic_cast<TransportCopyService*>(service.get());
  if (backend == nullptr) return fail(Code::unsupported, "the service has no transport");
  SessionOptions how;
  how.refit = options;
  how.ignore = cached.ignore;
  out->session = RESHARD_TRY(Session::prepare(
      backend->transport(), *group.control,
      {.layout = planner.shared_source(), .buffers = out->source.get()},
      {.layout = planner.shared_target(), .buffers = out->target.get()}, std::move(how)));
  out->service = std::move(service);
  return out;
}

Result<CallRecord> agree(const CallRecord& mine, ControlPlane& control, double seconds) {
  const auto deadline = Deadline::after(std::chrono::duration<double>(seconds));
  const auto all = RESHARD_TRY(control.all_gather(encode(mine), deadline));
  CallRecord out = mine;
  std::vector<CallRecord> records;
  for (std::size_t r = 0; r < all.size(); ++r) records.push_back(RESHARD_TRY(decode(all[r], r)));
  for (std::size_t r = 0; r < records.size(); ++r)
    if (!records[r].trouble.empty())
      return fail(records[r].code, fmt::format("rank {}: {}", r, records[r].trouble));
  for (std::size_t r = 1; r < records.size(); ++r)
    if (records[r].call != records[0].call)
      return fail(Code::invalid_argument, fmt::format("rank 0 calls {}, rank {} calls {}",
                                                      records[0].call, r, records[r].call));
  for (const CallRecord& other : records) {
    out.has = std::min(out.has, other.has);
    out.by_operations |= other.by_operations;
    out.service &= other.service;
    out.staging_bytes = std::min(out.staging_bytes, other.staging_bytes);
    if (other.planner != records[0].planner) out.has = CallRecord::Has::nothing;
  }
  return out;
}

}  // namespace reshard::megatron
