// SPDX-License-Identifier: Apache-2.0
// The other half.
#include "tests/one_definition/example/second.h"

double second_size();
double second_size() { return reshard::example::Move().bytes(); }
