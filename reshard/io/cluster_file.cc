// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/cluster_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>

#include "reshard/base/closest_name.h"
#include "reshard/io/example_configs.h"
#include "reshard/io/files/json_fields.h"

namespace reshard {
namespace {

using files::Fields;

constexpr std::size_t kMaxClusterFile = std::size_t{1} << 20;
constexpr std::size_t kMaxSources = 32;

/// A rate: 0, or at least one byte per second.
Result<double> rate(const Fields& fields, std::string_view key) {
  const Json* value = fields.find(key);
  if (value == nullptr || value->integer() == 0) return 0.0;
  return fields.number(key, 1, kMaxClusterRate);
}

Result<double> seconds(const Fields& fields, std::string_view key) {
  return fields.number_or(key, 0, 0, kMaxClusterSeconds);
}

Result<ClusterSpec::Copies> parse_copies(const Fields& root) {
  const auto fields = RESHARD_TRY(
      root.object("copies", {"cores", "cores_per_rank", "bytes_per_second", "host_bytes_per_second",
                             "seconds_per_run", "bytes_per_run"}));
  ClusterSpec::Copies c;
  c.cores = RESHARD_TRY(fields.integer_or("cores", 1, 1, kMaxClusterCount));
  c.cores_per_rank = RESHARD_TRY(fields.integer_or("cores_per_rank", 1, 1, c.cores));
  c.bytes_per_second = RESHARD_TRY(rate(fields, "bytes_per_second"));
  c.host_bytes_per_second = RESHARD_TRY(rate(fields, "host_bytes_per_second"));
  c.seconds_per_run = RESHARD_TRY(seconds(fields, "seconds_per_run"));
  c.bytes_per_run = RESHARD_TRY(fields.number_or("bytes_per_run", 0, 0, kMaxClusterRunBytes));
  return c;
}

Result<ClusterSpec::Nics> parse_nics(const Fields& root) {
  const auto fields = RESHARD_TRY(root.object(
      "nics", {"per_host", "bytes_per_second", "latency_seconds", "core_bytes_per_second"}));
  ClusterSpec::Nics n;
  n.per_host = RESHARD_TRY(fields.integer_or("per_host", 1, 1, kMaxClusterCount));
  n.bytes_per_second = RESHARD_TRY(rate(fields, "bytes_per_second"));
  n.latency_seconds = RESHARD_TRY(seconds(fields, "latency_seconds"));
  n.core_bytes_per_second = RESHARD_TRY(rate(fields, "core_bytes_per_second"));
  return n;
}

Result<ClusterSpec::Nvlink> parse_nvlink(const Fields& root) {
  if (!root.has("nvlink")) return ClusterSpec::Nvlink{};
  const auto fields =
      RESHARD_TRY(root.object("nvlink", {"ranks", "bytes_per_second", "latency_seconds"}));
  ClusterSpec::Nvlink n;
  n.ranks = RESHARD_TRY(fields.integer("ranks", 1, kMaxClusterCount));
  n.bytes_per_second = RESHARD_TRY(rate(fields, "bytes_per_second"));
  n.latency_seconds = RESHARD_TRY(seconds(fields, "latency_seconds"));
  return n;
}

Result<ClusterSpec::Fabric> parse_fabric(const Fields& root) {
  const auto fields = RESHARD_TRY(root.object("fabric", {"hosts_per_group", "oversubscription"}));
  ClusterSpec::Fabric f;
  f.hosts_per_group = RESHARD_TRY(fields.integer_or("hosts_per_group", 0, 1, kMaxClusterCount));
  f.oversubscription =
      RESHARD_TRY(fields.number_or("oversubscription", 1, 1, kMaxOversubscription));
  return f;
}

Result<ClusterSpec::Messages> parse_messages(const Fields& root) {
  const auto fields = RESHARD_TRY(root.object(
      "messages", {"seconds_per_message", "seconds_per_barrier", "copies_within_host"}));
  ClusterSpec::Messages m;
  m.seconds_per_message = RESHARD_TRY(seconds(fields, "seconds_per_message"));
  m.seconds_per_barrier = RESHARD_TRY(seconds(fields, "seconds_per_barrier"));
  m.copies_within_host = RESHARD_TRY(fields.number_or("copies_within_host", 1, 0, 100));
  return m;
}

Result<std::vector<std::string>> parse_sources(const Fields& root) {
  std::vector<std::string> sources;
  for (const Json& entry : RESHARD_TRY(root.list("sources", kMaxSources))) {
    const std::string* text = entry.string();
    if (text == nullptr || text->empty() || text->size() > files::kMaxFieldText)
      return fail(Code::corrupt, root.where() +
                                     ": sources must be a list of strings of 1 to 512 characters, "
                                     "one is " +
                                     entry.describe());
    sources.push_back(*text);
  }
  return sources;
}

/// The shortest spelling that reads back as the same number.
Json exact_number(double value) { return Json(Json::Number{fmt::format("{}", value)}); }

/// Leaves out what is 0, which is what a file without the key means.
void add(Json::Object& object, std::string_view key, double value) {
  if (value != 0) object.push_back({std::string(key), exact_number(value)});
}

Json::Object links_json(const ClusterSpec& c) {
  Json::Object nics{{"per_host", Json(c.nics.per_host)}};
  add(nics, "bytes_per_second", c.nics.bytes_per_second);
  add(nics, "latency_seconds", c.nics.latency_seconds);
  add(nics, "core_bytes_per_second", c.nics.core_bytes_per_second);
  Json::Object links{{"nics", Json(std::move(nics))}};
  if (c.nvlink.ranks > 0) {
    Json::Object nvlink{{"ranks", Json(c.nvlink.ranks)}};
    add(nvlink, "bytes_per_second", c.nvlink.bytes_per_second);
    add(nvlink, "latency_seconds", c.nvlink.latency_seconds);
    links.push_back({"nvlink", Json(std::move(nvlink))});
  }
  Json::Object pcie, fabric;
  add(pcie, "bytes_per_second", c.pcie_bytes_per_second);
  if (!pcie.empty()) links.push_back({"pcie", Json(std::move(pcie))});
  if (c.fabric.hosts_per_group > 0)
    fabric.push_back({"hosts_per_group", Json(c.fabric.hosts_per_group)});
  fabric.push_back({"oversubscription", exact_number(c.fabric.oversubscription)});
  links.push_back({"fabric", Json(std::move(fabric))});
  return links;
}

}  // namespace

Result<ClusterSpec> parse_cluster(std::string_view text) {
  const Json json = RESHARD_TRY(parse_json(text, {.bytes = kMaxClusterFile, .depth = 8}));
  const auto root = RESHARD_TRY(
      Fields::of(json, "the file",
                 {"name", "comment", "sources", "hosts", "ranks_per_host", "direct", "one_process",
                  "copies", "nics", "nvlink", "pcie", "fabric", "messages"}));
  ClusterSpec c;
  c.name = RESHARD_TRY(root.text("name"));
  if (root.has("comment")) c.comment = RESHARD_TRY(root.text("comment"));
  c.sources = RESHARD_TRY(parse_sources(root));
  c.hosts = RESHARD_TRY(root.integer_or("hosts", 0, 1, kMaxClusterCount));
  c.ranks_per_host = RESHARD_TRY(root.integer("ranks_per_host", 1, kMaxClusterCount));
  c.direct = RESHARD_TRY(root.flag_or("direct", true));
  c.one_process = RESHARD_TRY(root.flag_or("one_process", false));
  if (c.one_process && (c.hosts != 1 || !c.direct))
    return fail(Code::corrupt, "the file: one_process needs hosts to be 1 and direct to be true");
  c.copies = RESHARD_TRY(parse_copies(root));
  c.nics = RESHARD_TRY(parse_nics(root));
  c.nvlink = RESHARD_TRY(parse_nvlink(root));
  const auto pcie = RESHARD_TRY(root.object("pcie", {"bytes_per_second"}));
  c.pcie_bytes_per_second = RESHARD_TRY(rate(pcie, "bytes_per_second"));
  c.fabric = RESHARD_TRY(parse_fabric(root));
  c.messages = RESHARD_TRY(parse_messages(root));
  return c;
}

Result<ClusterSpec> read_cluster(const std::string& text) {
  std::error_code none;
  std::string path = text;
  if (!std::filesystem::exists(text, none)) {
    const auto example = find_example_cluster(text);
    const auto names = example_cluster_names();
    if (!example)
      return fail(Code::not_found,
                  fmt::format("cluster '{}': no such file, and no example of that name{}; examples "
                              "are {}",
                              text, did_you_mean(text, names), fmt::join(names, ", ")));
    path = *example;
  }
  const auto content = RESHARD_TRY(read_text_file(path, kMaxClusterFile));
  auto cluster = parse_cluster(content);
  if (!cluster) return tl::unexpected(std::move(cluster).error().in(path));
  return cluster;
}

std::string cluster_text(const ClusterSpec& c) {
  Json::Object root{{"name", Json(c.name)}};
  if (!c.comment.empty()) root.push_back({"comment", Json(c.comment)});
  Json::Array sources;
  for (const std::string& source : c.sources) sources.emplace_back(source);
  if (!sources.empty()) root.push_back({"sources", Json(std::move(sources))});
  if (c.hosts > 0) root.push_back({"hosts", Json(c.hosts)});
  root.push_back({"ranks_per_host", Json(c.ranks_per_host)});
  root.push_back({"direct", Json(c.direct)});
  if (c.one_process) root.push_back({"one_process", Json(true)});
  Json::Object copies{{"cores", Json(c.copies.cores)},
                      {"cores_per_rank", Json(c.copies.cores_per_rank)}};
  add(copies, "bytes_per_second", c.copies.bytes_per_second);
  add(copies, "host_bytes_per_second", c.copies.host_bytes_per_second);
  add(copies, "seconds_per_run", c.copies.seconds_per_run);
  add(copies, "bytes_per_run", c.copies.bytes_per_run);
  root.push_back({"copies", Json(std::move(copies))});
  for (Json::Member& link : links_json(c)) root.push_back(std::move(link));
  Json::Object messages;
  add(messages, "seconds_per_message", c.messages.seconds_per_message);
  add(messages, "seconds_per_barrier", c.messages.seconds_per_barrier);
  messages.push_back({"copies_within_host", exact_number(c.messages.copies_within_host)});
  root.push_back({"messages", Json(std::move(messages))});
  return Json(std::move(root)).dump(true) + "\n";
}

}  // namespace reshard
