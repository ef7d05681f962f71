// SPDX-License-Identifier: Apache-2.0
#include "reshard/convert/delta/report.h"

#include "reshard/base/hash.h"
#include "reshard/base/stopwatch.h"

namespace reshard {

DeltaReport delta::report_of(const DeltaLink& link, const DeltaIndex& index) {
  DeltaReport report{.base = hex(link.base),
                     .result = hex(link.result),
                     .anchor = hex(link.anchor),
                     .step = link.step,
                     .changes = {},
                     .result_bytes = index.result_bytes()};
  for (const DeltaPart& part : index.parts) {
    if (part.state == PartState::unchanged)
      ++report.unchanged;
    else
      report.changes.push_back(
          {part.file, part.name, std::string(name(part.state)), part.bytes, part.code_bytes()});
  }
  return report;
}

Result<DeltaReport> inspect_delta(const std::string& path) {
  const Stopwatch watch;
  const auto file = RESHARD_TRY(DeltaFile::open(path));
  DeltaReport report = delta::report_of(file.link(), file.index());
  report.delta_bytes = file.mapping().size();
  report.seconds = watch.seconds();
  return report;
}

}  // namespace reshard
