// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <string>

#include "cli/commands.h"
#include "cli/complain.h"
#include "cli/exit_code.h"
#include "cli/options.h"
#include "cli/run/processes/rank_place.h"
#include "reshard/io/files/mapping_guard.h"

namespace {

using reshard::cli::kDone, reshard::cli::kFailed;

int complain(const std::string& message, int exit_code) {
  reshard::cli::complain(message);
  return exit_code;
}

/// A report that cannot be written is a failure: "reshard plan > /dev/full".
int flush_output(int exit_code) {
  const bool lost = std::fflush(stdout) != 0 || std::ferror(stdout) != 0;
  return lost ? complain("cannot write to standard output", kFailed) : exit_code;
}

int run(int argc, char** argv) {
  const auto command = reshard::cli::parse_command_line(argc, argv);
  if (!command) {
    const auto& stop = command.error();
    // Of the processes of a launcher, one reports a wrong command line.
    if (stop.exit_code != kDone)
      return reshard::cli::is_first_of_launch() ? complain(stop.text, stop.exit_code)
                                                : stop.exit_code;
    std::fputs(stop.text.c_str(), stdout);
    return flush_output(kDone);
  }
  const auto result =
      std::visit([](const auto& arguments) { return reshard::cli::execute(arguments); }, *command);
  if (result) return flush_output(*result);
  return complain(result.error().message, reshard::cli::exit_code(result.error()));
}

}  // namespace

int main(int argc, char** argv) {
  // Then a file beyond the size limit is an error of the write that names the file, not a silent
  // death.
  std::signal(SIGXFSZ, SIG_IGN);
  reshard::guard_mappings();
  try {
    return run(argc, argv);
  } catch (const std::bad_alloc&) {
    return complain("out of memory", kFailed);
  } catch (const std::exception& e) {
    return complain(std::string("internal error: ") + e.what(), kFailed);
  }
}
