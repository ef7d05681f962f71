// SPDX-License-Identifier: Apache-2.0
// Protects: over a model of NVSHMEM with a thread for each PE the transport gives every guarantee
// of the conformance suite, whether PEs map each other's memory or a network is between them.
#include "reshard/transport/testing/conformance_testutil.h"

#include <numeric>

#include "reshard/gpu_transport/nvshmem/model_group_testutil.h"

namespace reshard {
namespace {

TransportUnderTest over_model(nvshmem::NvshmemModel::Options options) {
  return {"nvshmem", [options](int n, const RankBody& body) mutable {
            options.pes = n;
            nvshmem::ModelGroup group(options, std::size_t{2} << 20);
            std::vector<int> pes(static_cast<std::size_t>(n));
            std::iota(pes.begin(), pes.end(), 0);
            const Result<> result = group.run(pes, body);
            EXPECT_EQ(group.model().num_unmet_waits(), 0) << "a stream would wait for a peer";
            EXPECT_EQ(group.model().num_forbidden_waits(), 0);
            return result;
          }};
}

using nvshmem::NvshmemModel;
const TransportUnderTest kMapped = over_model({.order = NvshmemModel::Order::stream});
const TransportUnderTest kNetwork = over_model({.mapped = false});
const TransportUnderTest kShared = over_model({.started_status = nvshmem::kLimitedSharing});

RESHARD_TEST_TRANSPORT(NvshmemMapped, kMapped);
RESHARD_TEST_TRANSPORT(NvshmemNetwork, kNetwork);
INSTANTIATE_TEST_SUITE_P(NvshmemShared, TransportFailures, testing::Values(kShared));

}  // namespace
}  // namespace reshard
