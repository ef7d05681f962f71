// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string>
#include <vector>

#include "reshard/simulate/cluster.h"
#include "reshard/simulate/fair_share.h"

namespace reshard::simulate {

/// The uses of one activity, each resource once.
class UseList {
 public:
  /// Adds to the weight if the resource is in the list already.
  void add(std::uint32_t resource, double weight) {
    for (ResourceUse& use : uses_)
      if (use.resource == resource) return void(use.weight += weight);
    uses_.push_back({resource, weight});
  }
  void clear() { uses_.clear(); }
  std::span<const ResourceUse> uses() const { return uses_; }

 private:
  std::vector<ResourceUse> uses_;
};

/// The resources that limit a group of ranks on a cluster, and which of them the work of ranks
/// uses. Links and memory count bytes; cores count seconds of one core.
class ClusterLinks {
 public:
  /// The cluster must outlive this object. @pre check_cluster() and check_places() pass
  ClusterLinks(const ClusterSpec& cluster, Index ranks);

  Index num_hosts() const { return hosts_; }
  const std::vector<double>& rates() const { return rates_; }
  /// True of NICs, NVLink, PCIe and uplinks.
  bool is_link(std::uint32_t resource) const;
  /// "NIC 3 of host 2, sending", "cores of host 0"
  std::string name(std::uint32_t resource) const;

  /// The seconds that one core needs to copy so many bytes in so many contiguous runs.
  double core_seconds(double bytes, double runs) const;
  /// Copies by a core of `r`: so many bytes, in so many contiguous runs, for each unit. Here and in
  /// read(), rank -1 is a process on host 0 with the memory of all ranks, which uses all its cores.
  void copy(Rank r, double bytes, double runs, UseList& uses) const;
  /// Bytes that `to` reads from the memory of `from`, beside copy() by `to`.
  void read(Rank from, Rank to, double bytes, UseList& uses) const;
  /// Bytes in messages, beside packing and unpacking.
  void message(Rank from, Rank to, double bytes, double messages, UseList& uses) const;
  /// From a send to its first byte at the receiver. Seconds.
  double latency(Rank from, Rank to) const;

 private:
  enum Kind : std::uint8_t {
    kRankCores,
    kHostCores,
    kMemory,
    kNvlinkOut,
    kNvlinkIn,
    kPcieOut,
    kPcieIn,
    kNicOut,
    kNicIn,
    kUplinkOut,
    kUplinkIn,
    kKinds
  };
  void add_kind(Kind kind, Index count, double rate);
  void use(Kind kind, Index which, double weight, UseList& uses) const;
  void use_core(Rank r, double seconds, UseList& uses) const;
  Index host_of(Rank r) const { return r.value() < 0 ? 0 : cluster_.host_of(r); }
  bool has(Kind kind) const { return first_[kind + 1] > first_[kind]; }

  const ClusterSpec& cluster_;
  Index hosts_ = 0;
  std::array<std::size_t, kKinds + 1> first_{};
  std::vector<double> rates_;
};

}  // namespace reshard::simulate
