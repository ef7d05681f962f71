// SPDX-License-Identifier: Apache-2.0
// Activities that share resources: max-min fair rates by progressive filling. All rates grow
// together until a resource is full; the activities that use it keep their rate, and the others
// grow on. So no rate can grow without making one fall that is not larger.
//
// Cost of one sharing: uses + resources * log(resources).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace reshard::simulate {

/// An amount of a resource for each unit of an activity.
struct ResourceUse {
  std::uint32_t resource = 0;
  double weight = 1;
};

class FairShare {
 public:
  /// Units per second of each resource. @pre all are positive
  explicit FairShare(std::vector<double> rates);

  /// Adds an activity of some units; one without uses or units is done at once. `id` is the
  /// caller's. The uses are borrowed until the activity is done. @pre weights are positive
  void begin(std::uint32_t id, std::span<const ResourceUse> uses, double units);

  bool idle() const { return active_.empty(); }
  /// Units per second of all activities in progress, in the order in which they began.
  std::vector<double> rates();
  /// Seconds until the next activity is done. @pre not idle
  double next();
  /// The activities done after some seconds, by time, then by id: `after` counts from now. If
  /// `seconds` exceeds next(), rates that become free are used by others only after this call.
  struct Done {
    std::uint32_t id = 0;
    double after = 0;
  };
  const std::vector<Done>& advance(double seconds);

 private:
  struct Activity {
    std::uint32_t id = 0;
    std::span<const ResourceUse> uses;
    double left = 0, rate = 0;
  };
  void share();
  void freeze(std::uint32_t resource, double level);

  std::vector<double> rates_;
  std::vector<Activity> active_;
  bool shared_ = false;
  /// A resource in the sharing in progress: what is left of it, and the weight and number of its
  /// activities without a rate yet. Together, because they change together, in random order.
  struct Resource {
    double left = 0, weight = 0;
    std::uint32_t waiting = 0;
  };
  std::vector<Resource> resources_;
  std::vector<std::uint32_t> first_user_, users_;  ///< activities of a resource, as ranges.
  std::vector<char> frozen_;
  std::vector<Done> done_;
};

}  // namespace reshard::simulate
