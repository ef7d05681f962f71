// SPDX-License-Identifier: Apache-2.0
#include "reshard/simulate/cluster_links.h"

#include <fmt/format.h>

#include <algorithm>

namespace reshard::simulate {

ClusterLinks::ClusterLinks(const ClusterSpec& c, Index ranks)
    : cluster_(c), hosts_((ranks + c.ranks_per_host - 1) / c.ranks_per_host) {
  const Index groups = hosts_ == 0 ? 0 : c.group_of(hosts_ - 1) + 1;
  add_kind(kRankCores, ranks, static_cast<double>(c.cores_of_rank()));
  add_kind(kHostCores, hosts_, static_cast<double>(c.copies.cores));
  add_kind(kMemory, hosts_, c.copies.host_bytes_per_second);
  const Index linked = c.nvlink.ranks > 0 ? ranks : 0;
  add_kind(kNvlinkOut, linked, c.nvlink.bytes_per_second);
  add_kind(kNvlinkIn, linked, c.nvlink.bytes_per_second);
  add_kind(kPcieOut, ranks, c.pcie_bytes_per_second);
  add_kind(kPcieIn, ranks, c.pcie_bytes_per_second);
  add_kind(kNicOut, hosts_ * c.nics.per_host, c.nics.bytes_per_second);
  add_kind(kNicIn, hosts_ * c.nics.per_host, c.nics.bytes_per_second);
  const double uplink = c.nics.bytes_per_second * static_cast<double>(c.nics.per_host) *
                        static_cast<double>(c.fabric.hosts_per_group) / c.fabric.oversubscription;
  add_kind(kUplinkOut, groups > 1 ? groups : 0, uplink);
  add_kind(kUplinkIn, groups > 1 ? groups : 0, uplink);
}

/// A kind without a limit has no resources.
void ClusterLinks::add_kind(Kind kind, Index count, double rate) {
  first_[kind] = rates_.size();
  if (rate > 0) rates_.insert(rates_.end(), static_cast<std::size_t>(count), rate);
  first_[kind + 1] = rates_.size();
}

void ClusterLinks::use(Kind kind, Index which, double weight, UseList& uses) const {
  if (!has(kind) || weight <= 0) return;
  uses.add(static_cast<std::uint32_t>(first_[kind] + static_cast<std::size_t>(which)), weight);
}

bool ClusterLinks::is_link(std::uint32_t resource) const { return resource >= first_[kNvlinkOut]; }

std::string ClusterLinks::name(std::uint32_t resource) const {
  int kind = 0;
  while (resource >= first_[static_cast<std::size_t>(kind) + 1]) ++kind;
  const std::size_t i = resource - first_[static_cast<std::size_t>(kind)];
  const auto nics = static_cast<std::size_t>(cluster_.nics.per_host);
  switch (kind) {
    case kRankCores: return fmt::format("cores of rank {}", i);
    case kHostCores: return fmt::format("cores of host {}", i);
    case kMemory: return fmt::format("memory of host {}", i);
    case kNvlinkOut:
    case kNvlinkIn:
      return fmt::format("NVLink of rank {}, {}", i, kind == kNvlinkOut ? "sending" : "receiving");
    case kPcieOut:
    case kPcieIn:
      return fmt::format("PCIe of rank {}, {}", i, kind == kPcieOut ? "sending" : "receiving");
    case kNicOut:
    case kNicIn:
      return fmt::format("NIC {} of host {}, {}", i % nics, i / nics,
                         kind == kNicOut ? "sending" : "receiving");
    default:
      return fmt::format("uplinks of group {}, {}", i,
                         kind == kUplinkOut ? "sending" : "receiving");
  }
}

void ClusterLinks::use_core(Rank r, double seconds, UseList& uses) const {
  if (r.value() >= 0) use(kRankCores, r.value(), seconds, uses);
  use(kHostCores, host_of(r), seconds, uses);
}

double ClusterLinks::core_seconds(double bytes, double runs) const {
  const double rate = cluster_.copies.bytes_per_second;
  return (rate > 0 ? bytes / rate : 0) + runs * cluster_.copies.seconds_per_run;
}

void ClusterLinks::copy(Rank r, double bytes, double runs, UseList& uses) const {
  use_core(r, core_seconds(bytes, runs), uses);
  use(kMemory, host_of(r), bytes + runs * cluster_.copies.bytes_per_run, uses);
}

void ClusterLinks::read(Rank from, Rank to, double bytes, UseList& uses) const {
  if (from == to || to.value() < 0) return;
  if (cluster_.linked(from, to)) {
    use(kNvlinkOut, from.value(), bytes, uses);
    use(kNvlinkIn, to.value(), bytes, uses);
  } else {
    use(kPcieOut, from.value(), bytes, uses);
    use(kPcieIn, to.value(), bytes, uses);
  }
}

void ClusterLinks::message(Rank from, Rank to, double bytes, double messages, UseList& uses) const {
  const Index a = cluster_.host_of(from), b = cluster_.host_of(to);
  double core = messages * cluster_.messages.seconds_per_message;
  if (cluster_.linked(from, to) || a == b) {
    read(from, to, bytes, uses);
    if (a == b) copy(to, bytes * cluster_.messages.copies_within_host, 0, uses);
  } else {
    if (cluster_.nics.core_bytes_per_second > 0)
      core += bytes / cluster_.nics.core_bytes_per_second;
    use(kPcieOut, from.value(), bytes, uses);
    use(kPcieIn, to.value(), bytes, uses);
    use(kNicOut, a * cluster_.nics.per_host + cluster_.nic_of(from), bytes, uses);
    use(kNicIn, b * cluster_.nics.per_host + cluster_.nic_of(to), bytes, uses);
    if (cluster_.group_of(a) != cluster_.group_of(b)) {
      use(kUplinkOut, cluster_.group_of(a), bytes, uses);
      use(kUplinkIn, cluster_.group_of(b), bytes, uses);
    }
  }
  use_core(from, core, uses);
  use_core(to, core, uses);
}

double ClusterLinks::latency(Rank from, Rank to) const {
  if (cluster_.linked(from, to)) return cluster_.nvlink.latency_seconds;
  return cluster_.host_of(from) == cluster_.host_of(to) ? 0 : cluster_.nics.latency_seconds;
}

}  // namespace reshard::simulate
