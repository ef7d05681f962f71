// SPDX-License-Identifier: Apache-2.0
// Persistent buffers whose dtype the trainer changed while it ran.
#include <fmt/format.h>

#include "reshard/base/bytes.h"
#include "reshard/base/value_map.h"
#include "reshard/model/reported/gathered_metadata.h"
#include "reshard/refit/megatron/reshard_plan.h"
#include "reshard/transform/convert.h"

namespace reshard::megatron {
namespace {

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

/// Adds what a rank told, unless a lower one told it.
Result<> add(std::span<const std::byte> bytes, std::size_t rank, Dtypes& dtypes) {
  ByteReader r(bytes, fmt::format("dtypes of rank {}'s buffers", rank));
  const std::size_t count = r.count(2, "buffers");
  for (std::size_t i = 0; i < count && r.ok(); ++i) {
    const auto name = r.text(kMaxParameterName, "a name");
    const auto dtype = dtype_from_name(r.text(16, "a dtype"));
    if (!dtype) r.fail("a dtype that there is none of");
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

/// The buffer in another dtype, in memory of its own.
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

Dtypes persistent_buffer_dtypes(Module* module) {
  Dtypes out;
  if (module == nullptr) return out;
  const LayerPrefixMap layers = build_layer_module_prefix_map(*module);
  for (const NamedBuffer& b : named_persistent_buffers(*module))
    out.try_emplace(resolve_global_layer_number_in_name(b.full_name, layers), b.tensor->view.dtype);
  return out;
}

Result<bool> harmonize_buffer_dtypes(ReshardPlan& plan, Module* src_core, Module* tgt_core,
                                     const RefitGroup& group, double seconds) {
  if (!plan.buffer_dtypes)
    plan.buffer_dtypes =
        RESHARD_TRY(gathered(persistent_buffer_dtypes(src_core), *group.control, seconds));
  if (tgt_core == nullptr) return false;
  bool replaced = false;
  const LayerPrefixMap layers = build_layer_module_prefix_map(*tgt_core);
  for (const NamedBuffer& b : named_persistent_buffers(*tgt_core)) {
    const auto want =
        plan.buffer_dtypes->find(resolve_global_layer_number_in_name(b.full_name, layers));
    if (want == plan.buffer_dtypes->end() || want->second == b.tensor->view.dtype) continue;
    TensorPtr tensor = RESHARD_TRY(converted(*b.tensor, want->second));
    RESHARD_TRY(b.parent->replace_buffer(b.name, std::move(tensor)));
    replaced = true;
  }
  if (replaced) invalidate_refit_tensor_cache(*tgt_core);
  return replaced;
}

}  // namespace reshard::megatron
