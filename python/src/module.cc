// SPDX-License-Identifier: Apache-2.0
// The extension reshard._core. Each topic has a file with a function bind_TOPIC.
#include "python/src/support.h"

namespace reshard::python {

void bind_values(nb::module_& m);
void bind_box(nb::module_& m);
void bind_config(nb::module_& m);
void bind_model(nb::module_& m);
void bind_local_tensors(nb::module_& m);
void bind_layout(nb::module_& m);
void bind_explicit_layout(nb::module_& m);
void bind_full_tensors(nb::module_& m);
void bind_layout_builder(nb::module_& m);
void bind_rank_plans(nb::module_& m);
void bind_plan(nb::module_& m);
void bind_simulation(nb::module_& m);
void bind_buffers(nb::module_& m);
void bind_tensor_facts(nb::module_& m);
void bind_group(nb::module_& m);
void bind_fleet(nb::module_& m);
void bind_published(nb::module_& m);
void bind_report(nb::module_& m);
void bind_session(nb::module_& m);
void bind_in_process(nb::module_& m);
void bind_fingerprints(nb::module_& m);
void bind_quantise(nb::module_& m);
void bind_checkpoints(nb::module_& m);
void bind_deltas(nb::module_& m);
void bind_transports(nb::module_& m);
void bind_log(nb::module_& m);
void watch_arguments(nb::module_& m);

}  // namespace reshard::python

NB_MODULE(_core, m) {
  using namespace reshard::python;
  if (PyInterpreterState_GetID(PyInterpreterState_Get()) != 0)
    throw nb::import_error("reshard cannot be imported in a subinterpreter");
  m.doc() = "The C++ library behind `reshard`; import that instead.";
  m.attr("__version__") = RESHARD_VERSION;
  register_errors(m);
  bind_values(m);
  bind_box(m);
  bind_config(m);
  bind_model(m);
  bind_local_tensors(m);
  bind_layout(m);
  bind_explicit_layout(m);
  bind_full_tensors(m);
  bind_layout_builder(m);
  bind_rank_plans(m);
  bind_plan(m);
  bind_simulation(m);
  bind_buffers(m);
  bind_tensor_facts(m);
  bind_group(m);
  bind_fleet(m);
  bind_published(m);
  bind_report(m);
  bind_session(m);
  bind_in_process(m);
  bind_fingerprints(m);
  bind_quantise(m);
  bind_checkpoints(m);
  bind_deltas(m);
  bind_transports(m);
  bind_log(m);
  watch_arguments(m);
}
