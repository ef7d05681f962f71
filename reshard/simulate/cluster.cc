// SPDX-License-Identifier: Apache-2.0
#include "reshard/simulate/cluster.h"

#include <fmt/format.h>

#include <string_view>

namespace reshard {
namespace {

Result<> in_range(std::string_view key, double value, double least, double most) {
  if (value >= least && value <= most) return {};  // false for NaN
  return fail(Code::invalid_argument,
              fmt::format("{} must be from {} to {}, is {}", key, least, most, value));
}

Result<> count(std::string_view key, Index value, Index least) {
  if (value >= least && value <= kMaxClusterCount) return {};
  return fail(Code::invalid_argument, fmt::format("{} must be a whole number from {} to {}, is {}",
                                                  key, least, kMaxClusterCount, value));
}

Result<> check_counts(const ClusterSpec& c) {
  RESHARD_TRY(count("hosts", c.hosts, 0));
  RESHARD_TRY(count("ranks_per_host", c.ranks_per_host, 1));
  RESHARD_TRY(count("copies.cores", c.copies.cores, 1));
  RESHARD_TRY(count("copies.cores_per_rank", c.copies.cores_per_rank, 1));
  RESHARD_TRY(count("nics.per_host", c.nics.per_host, 1));
  RESHARD_TRY(count("nvlink.ranks", c.nvlink.ranks, 0));
  RESHARD_TRY(count("fabric.hosts_per_group", c.fabric.hosts_per_group, 0));
  if (c.copies.cores_per_rank > c.copies.cores)
    return fail(
        Code::invalid_argument,
        fmt::format("copies.cores_per_rank must be at most copies.cores, which is {}, is {}",
                    c.copies.cores, c.copies.cores_per_rank));
  return {};
}

}  // namespace

Result<> check_cluster(const ClusterSpec& c) {
  RESHARD_TRY(check_counts(c));
  const auto rate = [](std::string_view key, double value) {
    return value == 0 ? Result<>() : in_range(key, value, 1, kMaxClusterRate);
  };
  const auto seconds = [](std::string_view key, double value) {
    return in_range(key, value, 0, kMaxClusterSeconds);
  };
  RESHARD_TRY(rate("copies.bytes_per_second", c.copies.bytes_per_second));
  RESHARD_TRY(rate("copies.host_bytes_per_second", c.copies.host_bytes_per_second));
  RESHARD_TRY(seconds("copies.seconds_per_run", c.copies.seconds_per_run));
  RESHARD_TRY(in_range("copies.bytes_per_run", c.copies.bytes_per_run, 0, kMaxClusterRunBytes));
  RESHARD_TRY(rate("nics.bytes_per_second", c.nics.bytes_per_second));
  RESHARD_TRY(seconds("nics.latency_seconds", c.nics.latency_seconds));
  RESHARD_TRY(rate("nics.core_bytes_per_second", c.nics.core_bytes_per_second));
  RESHARD_TRY(rate("nvlink.bytes_per_second", c.nvlink.bytes_per_second));
  RESHARD_TRY(seconds("nvlink.latency_seconds", c.nvlink.latency_seconds));
  RESHARD_TRY(rate("pcie.bytes_per_second", c.pcie_bytes_per_second));
  RESHARD_TRY(
      in_range("fabric.oversubscription", c.fabric.oversubscription, 1, kMaxOversubscription));
  RESHARD_TRY(seconds("messages.seconds_per_message", c.messages.seconds_per_message));
  RESHARD_TRY(seconds("messages.seconds_per_barrier", c.messages.seconds_per_barrier));
  return in_range("messages.copies_within_host", c.messages.copies_within_host, 0, 100);
}

Result<> check_places(const ClusterSpec& cluster, Index ranks) {
  if (cluster.hosts == 0 || (ranks - 1) / cluster.ranks_per_host < cluster.hosts) return {};
  return fail(
      Code::invalid_argument,
      fmt::format("cluster {} has places for {} ranks ({} on each of {} hosts), the layouts "
                  "need {}",
                  cluster.name, cluster.hosts * cluster.ranks_per_host, cluster.ranks_per_host,
                  cluster.hosts, ranks));
}

}  // namespace reshard
