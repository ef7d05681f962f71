// SPDX-License-Identifier: Apache-2.0
// Protects: the C++ in docs/ compiles. Each function is the context that a page describes; none
// runs.
#include "reshard/dtensor.h"
#include "reshard/exec/rank_refit.h"
#include "reshard/megatron.h"
#include "reshard/reshard.h"
#include "reshard/transport/testing/conformance_testutil.h"
#include "reshard/transport/testing/rank_processes_testutil.h"

#pragma GCC diagnostic ignored "-Wunused-variable"
#pragma GCC diagnostic ignored "-Wunused-but-set-variable"

namespace reshard::docs {

void train();
Result<std::unique_ptr<Transport>> make_name(ControlPlane& control);

Result<> session(Transport& transport, ControlPlane& control, const SessionSide& source,
                 const SessionSide& target, const SessionOptions& options) {
#include "tests/docs/session.inc"
}

void forward_and_backward();
void update_weights();

Result<> background(Session& session, std::int64_t version) {
  using namespace std::chrono_literals;
#include "tests/docs/background.inc"
  return {};
}

Result<> targets(Transport& transport, ControlPlane& control, const SessionSide& source,
                 const std::shared_ptr<const ModelLayout>& prefill,
                 const std::shared_ptr<const ModelLayout>& decode,
                 const RankBuffers* prefill_memory, const RankBuffers* decode_memory) {
#include "tests/docs/targets.inc"
  return {};
}

Result<> refit(const Planner& planner, const RankBuffers& source, const RankBuffers& target,
               Transport& transport, ControlPlane& control) {
#include "tests/docs/refit.inc"
}

Result<> own_layout(const Model& model, const std::shared_ptr<const ModelLayout>& trainer, Rank me,
                    Transport& transport, ControlPlane& control, const SessionOptions& options) {
#include "tests/docs/own_layout.inc"
  return {};
}

Result<> gpu(const SessionSide& source, const SessionSide& target,
             cuda::StreamHandle torch_stream) {
#include "tests/docs/gpu.inc"
}

namespace megatron_api {
using namespace megatron;

Result<> refit(const std::unique_ptr<ControlPlane>& control,
               const std::unique_ptr<Transport>& transport, Module& trainer, Module& engine) {
#include "tests/docs/megatron_api.inc"
}
}  // namespace megatron_api

namespace xfer_api {
using namespace dtensor;

Result<> move_tensor(ControlPlane& control, Transport& transport, std::span<std::byte> shard) {
#include "tests/docs/xfer_api.inc"
}
}  // namespace xfer_api

}  // namespace reshard::docs

namespace reshard {
namespace {
using docs::make_name;
#include "tests/docs/transports.inc"
}  // namespace
}  // namespace reshard
