// SPDX-License-Identifier: Apache-2.0
#include "cli/run/common_settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/run/processes/mpi_rendezvous.h"
#include "reshard/base/hash.h"
#include "reshard/base/number_text.h"

namespace reshard::cli {
namespace {

std::string on_or_off(bool value) { return value ? "on" : "off"; }

std::string path_text(RefitPath path) {
  if (path == RefitPath::automatic) return "auto";
  return path == RefitPath::direct ? "direct" : "message";
}

/// Verification recomputes the source's values, so their origin must agree.
std::string values_text(const RunJob& job) {
  if (!job.arguments.verify) return "any";
  return job.model.weights ? "none, the weights are a checkpoint's"
                           : fmt::format("{}", job.arguments.seed);
}

std::string model_text(const ModelSpec& model) {
  return fmt::format("{}, {}, digest {}", plural(model.size(), "tensor"),
                     human_bytes(model.bytes()), hex(model.digest()));
}

}  // namespace

std::vector<RendezvousOptions::Setting> common_settings(const RunJob& job) {
  const RunArguments& a = job.arguments;
  const auto listed = [](const std::set<std::string>& patterns, std::string none) {
    return patterns.empty() ? none : fmt::format("{}", fmt::join(patterns, " "));
  };
  return {
      {"reshard", std::string(version())},
      {"a model of", model_text(*job.model.tensors)},
      {"--from", job.pair.from.stored()->name()},
      {"--to", job.pair.to.stored()->name()},
      {"--ignore", listed(a.ignore, "nothing")},
      {"--only", listed(a.only, "everything")},
      {"--transport", a.transport},
      {"--repeat", fmt::format("{}", a.repeat)},
      {"--verify=bytes", on_or_off(a.verify)},
      {"--verify=fingerprints", on_or_off(a.check_fingerprints)},
      {"--trace", on_or_off(!a.trace.empty())},
      {"--seed", values_text(job)},
      {"--path", path_text(a.path)},
      {"--convert", a.convert == ConversionSide::sender ? "sender" : "receiver"},
      {"--buffering", a.buffering == Buffering::doubled ? "doubled" : "in-place"},
  };
}

}  // namespace reshard::cli
