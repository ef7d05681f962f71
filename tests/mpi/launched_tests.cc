// SPDX-License-Identifier: Apache-2.0
#include "tests/mpi/launched_tests.h"

#include <stdlib.h>

#include <cstdio>
#include <filesystem>
#include <sstream>

#include "reshard/transport/group.h"
#include "reshard/transport/module.h"

namespace reshard {
namespace {

struct World {
  int rank = 0;
  int size = 1;
  std::string folder;  ///< all processes see it; rank 0 made it and removes it.
  int groups = 0;      ///< made so far, the same in every process.
  std::string failures;
};
World world;

/// Longer than the slowest test: processes that do not take part in a test wait for the others.
Deadline for_all() { return Deadline::after(std::chrono::minutes(10)); }

Result<std::unique_ptr<ControlPlane>> meet(int n) {
  RendezvousOptions join_as;
  join_as.url = "file://" + world.folder;
  join_as.job = "group-" + std::to_string(world.groups);
  join_as.rank = Rank{world.rank};
  join_as.size = n;
  join_as.deadline = for_all();
  return join(join_as);
}

Result<> find_world() {
  const auto place = RESHARD_TRY(launched());
  if (!place) return fail(Code::invalid_argument, "start it with mpirun");
  world.rank = place->rank;
  world.size = place->size;
  std::string folder = (std::filesystem::temp_directory_path() / "reshard_mpi_XXXXXX").string();
  if (world.rank == 0 && mkdtemp(folder.data()) == nullptr) return fail(Code::io, folder);
  const TransportModule* module = RESHARD_TRY(load_module("mpi"));
  const auto told =
      RESHARD_TRY(module->broadcast(std::as_bytes(std::span(folder.data(), folder.size()))));
  world.folder.assign(reinterpret_cast<const char*>(told.data()), told.size());
  return {};
}

/// One line per failure, with the rank.
class TellWithRank final : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo& test) override {
    test_ = std::string(test.test_suite_name()) + "." + test.name();
  }
  void OnTestPartResult(const testing::TestPartResult& part) override {
    if (!part.failed()) return;
    std::ostringstream line;
    line << "rank " << world.rank << ": " << test_ << ": "
         << (part.file_name() != nullptr ? part.file_name() : "") << ":" << part.line_number()
         << ": " << part.summary() << "\n";
    world.failures += line.str();
    std::fputs(line.str().c_str(), stderr);
  }
  std::string test_;  // gtest holds its lock here and cannot be asked.
};

/// True if no process has failed; rank 0 prints which ones did. Makes a group of all processes, so
/// that MPI is finalized.
Result<bool> all_passed() {
  ++world.groups;
  const auto control = RESHARD_TRY(meet(world.size));
  const auto transport = RESHARD_TRY(make_transport("mpi", *control));
  const std::byte mine{world.failures.empty() ? std::uint8_t{0} : std::uint8_t{1}};
  const auto all = RESHARD_TRY(control->all_gather({&mine, 1}, for_all()));
  bool passed = true;
  for (std::size_t r = 0; r < all.size(); ++r) {
    const bool failed = all[r].size() != 1 || all[r][0] != std::byte{0};
    if (failed && world.rank == 0) std::printf("rank %zu FAILED\n", r);
    passed = passed && !failed;
  }
  RESHARD_TRY(control->quiesce(for_all()));
  transport->close();
  control->close();
  RESHARD_TRY(finish_serving(for_all()));
  return passed;
}

}  // namespace

Result<> run_launched(int n, const RankBody& body) { return run_launched_with({}, n, body); }

Result<> run_launched_with(const TransportOptions& options, int n, const RankBody& body) {
  ++world.groups;
  if (n > world.size) return fail(Code::invalid_argument, "more ranks than mpirun started");
  if (world.rank >= n) return {};
  RankEnds ends;
  ends.control = RESHARD_TRY(meet(n));
  ends.transport = RESHARD_TRY(make_transport("mpi", *ends.control, options));
  body(ends);
  return {};
}

int launched_rank() { return world.rank; }

int run_launched_tests(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const Result<> found = find_world();
  if (!found) {
    std::fprintf(stderr, "%s\n", found.error().message.c_str());
    return 1;
  }
  testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
  if (world.rank != 0) delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new TellWithRank);
  const int here = RUN_ALL_TESTS();
  const Result<bool> passed = all_passed();
  if (!passed) std::fprintf(stderr, "rank %d: %s\n", world.rank, passed.error().message.c_str());
  std::error_code ignored;
  if (world.rank == 0) std::filesystem::remove_all(world.folder, ignored);
  return here == 0 && passed && *passed ? 0 : 1;
}

}  // namespace reshard
