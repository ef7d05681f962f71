// SPDX-License-Identifier: Apache-2.0
#include "reshard/simulate/fair_share.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <tuple>

namespace reshard::simulate {
namespace {

/// The level at which a resource is full.
struct Full {
  double level = 0;
  std::uint32_t resource = 0;
  bool operator>(const Full& other) const {
    return std::tie(level, resource) > std::tie(other.level, other.resource);
  }
};

constexpr double kForever = std::numeric_limits<double>::infinity();
/// Levels closer than this are equal: they differ by rounding.
constexpr double kRounding = 1e-12;

}  // namespace

FairShare::FairShare(std::vector<double> rates)
    : rates_(std::move(rates)), resources_(rates_.size()) {}

void FairShare::begin(std::uint32_t id, std::span<const ResourceUse> uses, double units) {
  active_.push_back({id, uses, units, 0});
  shared_ = false;
}

void FairShare::freeze(std::uint32_t resource, double level) {
  for (std::uint32_t u = first_user_[resource]; u < first_user_[resource + 1]; ++u) {
    const std::uint32_t a = users_[u];
    if (frozen_[a]) continue;
    frozen_[a] = 1;
    active_[a].rate = level;
    for (const ResourceUse& use : active_[a].uses) {
      Resource& r = resources_[use.resource];
      r.left = std::max(0.0, r.left - level * use.weight);
      r.weight -= use.weight;
      --r.waiting;
    }
  }
}

void FairShare::share() {
  for (std::size_t r = 0; r < rates_.size(); ++r) resources_[r] = {rates_[r], 0, 0};
  for (const Activity& a : active_)
    for (const ResourceUse& use : a.uses) {
      resources_[use.resource].weight += use.weight;
      ++resources_[use.resource].waiting;
    }
  first_user_.assign(rates_.size() + 1, 0);
  for (std::size_t r = 0; r < rates_.size(); ++r)
    first_user_[r + 1] = first_user_[r] + resources_[r].waiting;
  users_.resize(first_user_.back());
  std::vector<std::uint32_t> at(first_user_.begin(), first_user_.end() - 1);
  for (std::uint32_t a = 0; a < active_.size(); ++a) {
    active_[a].rate = kForever;
    for (const ResourceUse& use : active_[a].uses) users_[at[use.resource]++] = a;
  }
  frozen_.assign(active_.size(), 0);
  std::vector<Full> full;
  for (std::uint32_t r = 0; r < rates_.size(); ++r)
    if (const Resource& x = resources_[r]; x.waiting > 0) full.push_back({x.left / x.weight, r});
  std::priority_queue queue(std::greater<Full>(), std::move(full));
  while (!queue.empty()) {
    const Full top = queue.top();
    queue.pop();
    const Resource& r = resources_[top.resource];
    if (r.waiting == 0) continue;
    // Levels only rise while others freeze, so an entry of the queue may be too low.
    const double level = r.left / std::max(r.weight, 1e-300);
    if (level > top.level * (1 + kRounding))
      queue.push({level, top.resource});
    else
      freeze(top.resource, top.level);
  }
  shared_ = true;
}

std::vector<double> FairShare::rates() {
  if (!shared_) share();
  std::vector<double> rates;
  for (const Activity& a : active_) rates.push_back(a.rate);
  return rates;
}

double FairShare::next() {
  if (!shared_) share();
  double soonest = kForever;
  for (const Activity& a : active_)
    soonest = std::min(soonest, a.uses.empty() || a.left <= 0 ? 0.0 : a.left / a.rate);
  return soonest;
}

const std::vector<FairShare::Done>& FairShare::advance(double seconds) {
  if (!shared_) share();
  done_.clear();
  std::erase_if(active_, [&](Activity& a) {
    const double needed = a.uses.empty() || a.left <= 0 ? 0.0 : a.left / a.rate;
    if (needed <= seconds * (1 + kRounding)) {
      done_.push_back({a.id, std::min(needed, seconds)});
      return true;
    }
    a.left -= seconds * a.rate;
    return false;
  });
  std::ranges::sort(done_, {}, [](const Done& d) { return std::pair(d.after, d.id); });
  if (!done_.empty()) shared_ = false;
  return done_;
}

}  // namespace reshard::simulate
