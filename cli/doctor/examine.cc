// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor/checks.h"
#include "reshard/transport/process_reads.h"

namespace reshard::cli::doctor {
namespace {

using State = Finding::State;

/// Seconds that a part may take. Drivers start in some.
constexpr double kUsual = 10, kDriver = 30;

void append(std::vector<Finding>& to, std::vector<Finding> more) {
  for (Finding& finding : more) to.push_back(std::move(finding));
}

/// The subjects that the kernel answers at once.
std::vector<Finding> examine_limits() {
  const ControlGroupLimits limits = control_group_limits();
  return {judge(read_container(limits)), judge(read_processor(limits)), judge(read_numa()),
          judge(read_memory(limits)),    judge(read_huge_pages()),      judge(read_open_files()),
          judge(read_locked_memory()),   judge(read_processes(limits)), judge(read_address_space()),
          judge(read_clock()),           judge(read_network()),         judge(read_variables())};
}

}  // namespace

std::vector<Finding> examine() {
  std::vector<Finding> out = look_in_child("machine", kUsual, State::problem, examine_limits);
  append(out, look_in_child("peers' memory", kUsual, State::note, [] {
           return std::vector{judge(PeerReadsFacts{process_reads_unavailable()})};
         }));
  // A file system of the network may never answer.
  for (const auto& [name, use] : {std::pair("/dev/shm", FolderFacts::Use::shared_memory),
                                  std::pair("temporary folder", FolderFacts::Use::temporary)})
    append(out, look_in_child(name, kUsual, State::problem,
                              [use] { return std::vector{judge(read_folder(use))}; }));
  append(out, look_in_child("GPUs", kDriver, State::note,
                            [] { return std::vector{judge(read_gpus())}; }));
  for (const std::string_view name : transport_names())
    append(out, look_in_child(std::string(name), kDriver, State::note, [name] {
             const auto transport = find_transport(name);
             return transport ? std::vector{judge(*transport)} : std::vector<Finding>();
           }));
  return out;
}

}  // namespace reshard::cli::doctor
