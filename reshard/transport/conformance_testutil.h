// SPDX-License-Identifier: Apache-2.0
// The conformance suite of transports. A backend's test file includes this, says how to run ranks,
// and instantiates; the suite says what every backend owes its callers. Include it in one file of a
// test program.
#pragma once

#include "reshard/transport/conformance_control_testutil.h"
#include "reshard/transport/conformance_failures_testutil.h"
#include "reshard/transport/conformance_messages_testutil.h"

/// Instantiates the whole suite for one backend.
#define RESHARD_TEST_TRANSPORT(Name, under_test)                                                 \
  INSTANTIATE_TEST_SUITE_P(                                                                      \
      Name, TransportMessages,                                                                   \
      testing::Combine(testing::Values(under_test), testing::Values(1, 2, 3, 5, 8)), case_name); \
  INSTANTIATE_TEST_SUITE_P(Name, TransportFailures, testing::Values(under_test));                \
  INSTANTIATE_TEST_SUITE_P(Name, TransportControl, testing::Values(under_test));                 \
  INSTANTIATE_TEST_SUITE_P(Name, TransportSlow, testing::Values(under_test))
