// SPDX-License-Identifier: Apache-2.0
// One half of a program with two types of one name; one_definition must report it.
#include "tests/one_definition/example/first.h"

#include <vector>

double second_size();

int main() {
  const std::vector<reshard::example::Move> moves(1);
  return static_cast<int>(moves.front().from + second_size());
}
