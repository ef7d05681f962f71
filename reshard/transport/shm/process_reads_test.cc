// SPDX-License-Identifier: Apache-2.0
// Protects: reads of another process's memory give its bytes, and the test of whether they are
// permitted agrees with a read that is tried.
#include "reshard/transport/shm/process_reads.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "reshard/transport/process_reads.h"

namespace reshard {
namespace {

TEST(ProcessReads, of_a_child_agree_with_the_test) {
  volatile std::uint64_t value = 77;
  int ready[2] = {-1, -1};
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    value = 78;
    shm::let_peers_read();
    if (::write(ready[1], "x", 1) == 1) ::pause();
    ::_exit(0);
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  const auto address = reinterpret_cast<std::uint64_t>(&value);
  const bool read = shm::reads_memory_of(child, address, 78);
  EXPECT_FALSE(shm::reads_memory_of(child, address, 77));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_FALSE(shm::reads_memory_of(child, address, 78));
  ::close(ready[0]);
  ::close(ready[1]);
  EXPECT_EQ(process_reads_unavailable().empty(), read);
}

}  // namespace
}  // namespace reshard
