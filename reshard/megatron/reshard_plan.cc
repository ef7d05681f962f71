// SPDX-License-Identifier: Apache-2.0
#include "reshard/megatron/reshard_plan.h"

#include <fmt/format.h>

#include "reshard/base/bytes.h"
#include "reshard/base/value_map.h"
#include "reshard/model/reported/gathered_metadata.h"
#include "reshard/transform/convert.h"

namespace reshard::megatron {
namespace {

Deadline after(double seconds) { return Deadline::after(std::chrono::duration<double>(seconds)); }

Result<std::optional<RankMetadata>> report(Module* module, const RefitGroup& group,
                                           Index rank_offset, const PlanArguments& arguments) {
  if (module == nullptr) return std::nullopt;
  ExtractOptions options;
  options.num_experts = arguments.num_experts;
  options.rank_offset = rank_offset;
  options.world_size = group.control->size() - rank_offset;
  return RESHARD_TRY(module_metadata(*module, group.rank(), options));
}

/// The metadata of this rank's models.
struct Reports {
  std::optional<RankMetadata> src, dst;
  const RankMetadata* source() const { return src ? &*src : nullptr; }
  const RankMetadata* target() const { return dst ? &*dst : nullptr; }
};

Result<Reports> reports(const RefitGroup& group, Module* src_module, Module* dst_module,
                        const PlanArguments& arguments) {
  auto src = report(src_module, group, arguments.src_rank_offset, arguments);
  auto dst = report(dst_module, group, arguments.dst_rank_offset, arguments);
  if (src && dst) return Reports{*std::move(src), *std::move(dst)};
  Error error = !src ? Error(src.error()).in("source") : Error(dst.error()).in("destination");
  group.control->abort(error.message);
  return tl::unexpected(std::move(error));
}

ReshardPlan from_operations(reshard::ReshardPlan plan) {
  ReshardPlan out;
  out.send_ops = std::move(plan.send_ops);
  out.recv_ops = std::move(plan.recv_ops);
  out.converted = std::move(plan.buffer_dtypes);
  return out;
}

Result<BuiltPlan> planned(const RefitGroup& group, const RankMetadata* src, const RankMetadata* dst,
                          double seconds) {
  auto gathered = RESHARD_TRY(gather_planner(*group.control, src, dst, after(seconds)));
  BuiltPlan out{{}, std::move(gathered.planner), std::move(gathered.ignore)};
  if (src != nullptr || dst != nullptr)
    out.plan = from_operations(replayed_reshard_plan(*out.planner, group.rank()));
  return out;
}

/// One refit by operations.
class Execution {
 public:
  Execution(const ReshardPlan& plan, Module* src, Module* dst, CopyService& service,
            ReshardTransform* transform)
      : plan_(plan), service_(service), transform_(transform) {
    if (src != nullptr) src_ = get_refit_tensor_dict(*src);
    if (dst != nullptr) dst_ = get_refit_tensor_dict(*dst);
  }

  Result<> submit() {
    if (transform_ != nullptr) transform_->begin();
    for (const TransferOp& op : plan_.send_ops)
      if (src_ != nullptr) RESHARD_TRY(submit_send(op));
    for (const TransferOp& op : plan_.recv_ops)
      if (dst_ != nullptr) RESHARD_TRY(submit_recv(op));
    return {};
  }

  Result<> finalize() {
    for (const Received& r : received_)
      RESHARD_TRY(transform_->finalize_recv(r.op->param_name, r.op->my_slice, r.tensors));
    return transform_ != nullptr ? transform_->finish() : Result<>{};
  }

 private:
  struct Received {
    const TransferOp* op;
    std::vector<WireTensor> tensors;
  };

  bool transforms(const TransferOp& op) const {
    return transform_ != nullptr && transform_->should_transform(op.param_name);
  }

  static Result<const Tensor*> find(const TensorDict& tensors, const TransferOp& op) {
    const TensorPtr* found = tensors.find(op.param_name);
    if (found == nullptr)
      return fail(Code::not_found,
                  fmt::format("parameter '{}' of the plan is not in the module", op.param_name));
    return found->get();
  }

  static std::optional<TaskId> id_of(const TransferOp& op, std::size_t part) {
    return TaskId{op.task_id, static_cast<int>(part)};
  }

  Result<> submit_send(const TransferOp& op) {
    const Tensor& tensor = *RESHARD_TRY(find(*src_, op));
    ReshardTransform plain;
    ReshardTransform& how = transforms(op) ? *transform_ : plain;
    auto tensors = RESHARD_TRY(how.prepare_send(op.param_name, op.my_slice, tensor, op.peer_slice));
    for (std::size_t i = 0; i < tensors.size(); ++i)
      RESHARD_TRY(service_.submit_send(tensors[i].view, op.peer_rank, id_of(op, i)));
    for (WireTensor& t : tensors)
      if (t.owner != nullptr) sent_.push_back(std::move(t.owner));
    return {};
  }

  Result<> submit_recv(const TransferOp& op) {
    if (transforms(op)) {
      auto tensors = RESHARD_TRY(transform_->prepare_recv(op.param_name, op.my_slice));
      for (std::size_t i = 0; i < tensors.size(); ++i)
        RESHARD_TRY(service_.submit_recv(tensors[i].view, op.peer_rank, id_of(op, i)));
      received_.push_back({&op, std::move(tensors)});
      return {};
    }
    const Tensor& tensor = *RESHARD_TRY(find(*dst_, op));
    if (tensor.mxfp8 != nullptr)
      return invalid_parameter(op.param_name, "it is kept as MXFP8 and no transform handles it");
    if (const auto from = plan_.converted.find(op.param_name); from != plan_.converted.end())
      return invalid_parameter(
          op.param_name,
          fmt::format("{} at the source but {} here; operations copy bytes, only refits by "
                      "a backend's name convert values",
                      name(from->second), name(tensor.view.dtype)));
    const TensorView view = RESHARD_TRY(slice(tensor.view, op.my_slice));
    return service_.submit_recv(view, op.peer_rank, id_of(op, 0));
  }

  const ReshardPlan& plan_;
  CopyService& service_;
  ReshardTransform* transform_;
  std::shared_ptr<const TensorDict> src_, dst_;
  std::vector<std::shared_ptr<const void>> sent_;
  std::vector<Received> received_;
};

Result<> execute(Execution& execution, CopyService& service, const RefitGroup& group,
                 double seconds) {
  RESHARD_TRY(execution.submit());
  RESHARD_TRY(service.run());
  RESHARD_TRY(group.control->barrier(after(seconds)));
  return execution.finalize();
}

using Dtypes = std::map<std::string, DType>;

std::vector<std::byte> encode(const Dtypes& dtypes) {
  ByteWriter w;
  w.number(dtypes.size());
  for (const auto& [name, dtype] : dtypes) {
    w.text(name);
    w.text(reshard::name(dtype));
  }
  return std::move(w).finish();
}

/// Adds a rank's dtypes, unless a lower rank has the buffer.
Result<> add(std::span<const std::byte> bytes, std::size_t rank, Dtypes& dtypes) {
  ByteReader r(bytes, fmt::format("dtypes of rank {}'s buffers", rank));
  const std::size_t count = r.count(2, "buffers");
  for (std::size_t i = 0; i < count && r.ok(); ++i) {
    const auto name = r.text(kMaxParameterName, "a name");
    const auto dtype = dtype_from_name(r.text(16, "a dtype"));
    if (!dtype) r.fail("an unknown dtype");
    if (r.ok()) dtypes.try_emplace(std::string(name), *dtype);
  }
  return r.finish();
}

Result<Dtypes> gathered(const Dtypes& mine, ControlPlane& control, double seconds) {
  const auto deadline = Deadline::after(std::chrono::duration<double>(seconds));
  const auto all = RESHARD_TRY(control.all_gather(encode(mine), deadline));
  Dtypes out;
  for (std::size_t r = 0; r < all.size(); ++r) RESHARD_TRY(add(all[r], r, out));
  return out;
}

/// The buffer in another dtype, in new memory.
Result<TensorPtr> converted(const Tensor& from, DType dtype) {
  auto memory = std::make_shared<OwnedTensor>(RESHARD_TRY(make_tensor(dtype, from.view.shape)));
  if (is_convertible(from.view.dtype) && is_convertible(dtype))
    convert_values({{from.view.dtype}, {dtype}}, from.view.data, memory->view.data,
                   from.view.num_elements());
  auto out = std::make_shared<Tensor>(from);
  out->view = memory->view;
  out->owner = std::move(memory);
  return out;
}

}  // namespace

std::string to_string(const ReshardPlan& plan) {
  return fmt::format("ReshardPlan(sends={}, recvs={})", plan.send_ops.size(), plan.recv_ops.size());
}

Result<BuiltPlan> build_plan(const RefitGroup& group, Module* src_module, Module* dst_module,
                             const PlanArguments& arguments) {
  const Reports mine = RESHARD_TRY(reports(group, src_module, dst_module, arguments));
  return planned(group, mine.source(), mine.target(), arguments.seconds);
}

Result<ReshardPlan> build_centralized_reshard_plan(const RefitGroup& group, Module* src_module,
                                                   Module* dst_module,
                                                   const PlanArguments& arguments) {
  const Reports mine = RESHARD_TRY(reports(group, src_module, dst_module, arguments));
  auto plan = RESHARD_TRY(
      reshard::build_centralized_reshard_plan(*group.control, mine.source(), mine.target(),
                                              arguments.planned_by, after(arguments.seconds)));
  return from_operations(std::move(plan));
}

Result<> execute_reshard_plan(const ReshardPlan& plan, Module* src_module, Module* dst_module,
                              CopyService& service, const RefitGroup& group,
                              ReshardTransform* transform, double seconds) {
  Execution execution(plan, src_module, dst_module, service, transform);
  Result<> done = execute(execution, service, group, seconds);
  if (!done) group.control->abort(done.error().message);
  return done;
}

Dtypes persistent_buffer_dtypes(Module* module) {
  Dtypes out;
  if (module == nullptr) return out;
  for (const BufferPlace& b : get_refit_tensor_dict(*module)->buffers())
    out.try_emplace(b.resolved_name, b.tensor()->view.dtype);
  return out;
}

Result<bool> harmonize_buffer_dtypes(ReshardPlan& plan, Module* src_core, Module* tgt_core,
                                     const RefitGroup& group, double seconds) {
  if (!plan.buffer_dtypes)
    plan.buffer_dtypes =
        RESHARD_TRY(gathered(persistent_buffer_dtypes(src_core), *group.control, seconds));
  if (tgt_core == nullptr) return false;
  bool replaced = false;
  const auto tensors = get_refit_tensor_dict(*tgt_core);
  for (const BufferPlace& b : tensors->buffers()) {
    const auto want = plan.buffer_dtypes->find(b.resolved_name);
    if (want == plan.buffer_dtypes->end() || want->second == b.tensor()->view.dtype) continue;
    TensorPtr tensor = RESHARD_TRY(converted(*b.tensor(), want->second));
    RESHARD_TRY(b.parent->replace_buffer(b.parent->buffers()[b.index].name, std::move(tensor)));
    replaced = true;
  }
  if (replaced) invalidate_refit_tensor_cache(*tgt_core);
  return replaced;
}

}  // namespace reshard::megatron
