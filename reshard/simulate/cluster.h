// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "reshard/base/ids.h"
#include "reshard/base/result.h"
#include "reshard/index/interval.h"

namespace reshard {

/// A cluster as data: what a simulation needs to know of the machines. Ranks fill hosts, NICs and
/// NVLink domains in order: rank r is on host r / ranks_per_host. Rates are bytes per second, of
/// one direction; a rate of 0 means that this part never limits a transfer. Times are seconds.
struct ClusterSpec {
  struct Copies {
    Index cores = 1;                   ///< of a host, that copy (or the copying parts of its GPUs).
    Index cores_per_rank = 1;          ///< that one rank uses; at most `cores`.
    double bytes_per_second = 0;       ///< copied by one core.
    double host_bytes_per_second = 0;  ///< copied by all cores of a host together.
    double seconds_per_run = 0;        ///< of a core, for each contiguous run of a copy.
    /// Bytes of host_bytes_per_second that each run costs beside its own: parts of cache lines, and
    /// what is prefetched in vain.
    double bytes_per_run = 0;
    friend bool operator==(const Copies&, const Copies&) = default;
  };
  struct Nics {
    Index per_host = 1;  ///< the ranks of a host share them evenly, in order.
    double bytes_per_second = 0;
    double latency_seconds = 0;        ///< from a send to its first byte at the receiver.
    double core_bytes_per_second = 0;  ///< that one core sends or receives; 0: needs no core.
    friend bool operator==(const Nics&, const Nics&) = default;
  };
  struct Nvlink {
    Index ranks = 0;  ///< consecutive ranks of a domain; 0: there is no NVLink.
    double bytes_per_second = 0;
    double latency_seconds = 0;
    friend bool operator==(const Nvlink&, const Nvlink&) = default;
  };
  struct Fabric {
    Index hosts_per_group = 0;    ///< consecutive hosts under one leaf switch; 0: one group of all.
    double oversubscription = 1;  ///< rate of a group's NICs over that of its uplinks.
    friend bool operator==(const Fabric&, const Fabric&) = default;
  };
  struct Messages {
    double seconds_per_message = 0;  ///< of a core of the sender, and of the receiver.
    double seconds_per_barrier = 0;
    /// Copies of each byte by the receiver's core on the way of a message within one host.
    double copies_within_host = 1;
    friend bool operator==(const Messages&, const Messages&) = default;
  };

  std::string name, comment;         ///< for people. `comment` may be empty.
  std::vector<std::string> sources;  ///< where the figures are published.
  Index hosts = 0;                   ///< 0: as many as the ranks need.
  Index ranks_per_host = 1;
  /// Ranks of one host or NVLink domain read each other's memory; otherwise they exchange messages.
  bool direct = true;
  /// All ranks are in one process of the only host, whose threads use all its cores.
  bool one_process = false;
  Copies copies;
  Nics nics;
  Nvlink nvlink;
  double pcie_bytes_per_second = 0;  ///< of each rank; its NIC and other ranks are behind it.
  Fabric fabric;
  Messages messages;

  Index host_of(Rank r) const { return r.value() / ranks_per_host; }
  /// The NIC of its host that a rank uses.
  Index nic_of(Rank r) const { return r.value() % ranks_per_host * nics.per_host / ranks_per_host; }
  Index group_of(Index host) const {
    return fabric.hosts_per_group == 0 ? 0 : host / fabric.hosts_per_group;
  }
  bool linked(Rank a, Rank b) const {
    return nvlink.ranks > 0 && a.value() / nvlink.ranks == b.value() / nvlink.ranks;
  }
  /// Threads of a rank that copy.
  Index cores_of_rank() const { return one_process ? copies.cores : copies.cores_per_rank; }
  /// True if the receiver copies from the sender's memory, without a message.
  bool reads(Rank from, Rank to) const {
    return from == to || (direct && (linked(from, to) || host_of(from) == host_of(to)));
  }
  friend bool operator==(const ClusterSpec&, const ClusterSpec&) = default;
};

/// Limits of the figures of a cluster, for whoever reads them from outside.
inline constexpr Index kMaxClusterCount = Index{1} << 20;
inline constexpr double kMaxClusterRate = 1e15, kMaxClusterSeconds = 3600,
                        kMaxClusterRunBytes = 65536, kMaxOversubscription = 1000;

/// Errors: a count below 1 or above kMaxClusterCount; a rate or a time that is negative, not a
/// number or above its limit; more cores per rank than cores; one process on several hosts, or with
/// messages. The key is named as in a cluster file.
Result<> check_cluster(const ClusterSpec& cluster);

/// Errors: a cluster with a fixed number of hosts has no place for rank `ranks` - 1.
Result<> check_places(const ClusterSpec& cluster, Index ranks);

}  // namespace reshard
