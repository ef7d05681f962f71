// SPDX-License-Identifier: Apache-2.0
// The conformance suite of transports: the guarantees of every backend. The test file of a backend
// includes this, says how to run ranks, and instantiates the suite.
#pragma once

#include "reshard/transport/testing/conformance_ranks_testutil.h"

namespace reshard {

/// Links the tests of the suite into the program.
int conformance_suite();

}  // namespace reshard

/// Instantiates the part of the suite that needs no data plane for one backend.
#define RESHARD_TEST_CONTROL_PLANE(Name, under_test)                        \
  [[maybe_unused]] const int kSuite##Name = ::reshard::conformance_suite(); \
  INSTANTIATE_TEST_SUITE_P(Name, TransportControl, testing::Values(under_test))

/// Instantiates the part of the suite about messages and their failures for one backend.
#define RESHARD_TEST_MESSAGES(Name, under_test)                                                  \
  [[maybe_unused]] const int kMessages##Name = ::reshard::conformance_suite();                   \
  INSTANTIATE_TEST_SUITE_P(                                                                      \
      Name, TransportMessages,                                                                   \
      testing::Combine(testing::Values(under_test), testing::Values(1, 2, 3, 5, 8)), case_name); \
  INSTANTIATE_TEST_SUITE_P(Name, TransportLoad,                                                  \
                           testing::Combine(testing::Values(under_test), testing::Values(1, 3)), \
                           case_name);                                                           \
  INSTANTIATE_TEST_SUITE_P(Name, TransportFailures, testing::Values(under_test))

/// Instantiates the whole suite for one backend.
#define RESHARD_TEST_TRANSPORT(Name, under_test) \
  RESHARD_TEST_CONTROL_PLANE(Name, under_test);  \
  RESHARD_TEST_MESSAGES(Name, under_test);       \
  INSTANTIATE_TEST_SUITE_P(Name, TransportSlow, testing::Values(under_test))
