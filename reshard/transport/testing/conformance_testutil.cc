// SPDX-License-Identifier: Apache-2.0
// Compiles the tests of the suite, once.
#include "reshard/transport/testing/conformance_testutil.h"

#include "reshard/transport/testing/conformance_control_testutil.h"
#include "reshard/transport/testing/conformance_failures_testutil.h"
#include "reshard/transport/testing/conformance_messages_testutil.h"

namespace reshard {

// A program may instantiate only a part of the suite.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TransportMessages);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TransportLoad);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TransportFailures);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TransportControl);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TransportSlow);

int conformance_suite() { return 0; }

}  // namespace reshard
