// SPDX-License-Identifier: Apache-2.0
#include "cli/commands.h"
#include "cli/json_report.h"
#include "cli/measure.h"
#include "cli/table.h"
#include "reshard/cuda/ipc/exported_memory.h"
#include "reshard/io/files/json.h"
#include "reshard/transport/registry.h"

namespace reshard::cli {
namespace {

std::string as_json() {
  Json::Array list;
  for (const TransportStatus& t : transports())
    list.emplace_back(Json::Object{{"name", Json(std::string(t.name))},
                                   {"built", Json(t.built)},
                                   {"available", Json(t.available)},
                                   {"version", Json(std::string(t.version))},
                                   {"reason", Json(std::string(t.reason))},
                                   {"gpu_messages", Json(t.gpu_reason.empty())},
                                   {"gpu_reason", Json(std::string(t.gpu_reason))},
                                   {"purpose", Json(std::string(t.purpose))}});
  return json_report("transports", {{"transports", Json(std::move(list))}});
}

/// Why the transport is not here, or why it does not carry the memory of GPUs although it could.
std::string why_not(const TransportStatus& t) {
  if (!t.available) return t.reason;
  const bool can_carry = t.gpu_reason != kHostMemoryOnly;
  return can_carry && !t.gpu_reason.empty() ? "GPU memory in place: " + t.gpu_reason : "";
}

/// How messages leave and enter the memory of GPUs.
std::string gpu_text(const TransportStatus& t) {
  if (!t.available) return "";
  return t.gpu_reason.empty() ? "in place" : "through the host";
}

}  // namespace

Result<int> execute(const TransportsArguments& a) {
  if (a.json) {
    print(as_json());
    return 0;
  }
  Table table({{"transport"}, {"here"}, {"version"}, {"GPU memory"}, {"for"}, {"why not"}});
  for (const TransportStatus& t : transports())
    table.add({std::string(t.name),
               t.available ? "yes"
               : t.built   ? "built"
                           : "no",
               std::string(t.version), gpu_text(t), std::string(t.purpose), why_not(t)});
  print(table.text(Style::of_stdout(), 0));
  // Not a transport: ranks of one host use it beside theirs.
  const std::string why_not = gpu_sharing_unavailable();
  print("GPU memory between processes of this host (cuda_ipc): " +
        (why_not.empty() ? std::string("available") : "no: " + why_not) + "\n");
  return 0;
}

}  // namespace reshard::cli
