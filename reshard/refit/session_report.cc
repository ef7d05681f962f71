// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <mutex>

#include "reshard/exec/plain_copy.h"
#include "reshard/refit/session_report.h"

namespace reshard {
namespace {

/// Exceeds the caches of most machines.
constexpr Index kBytes = Index{256} << 20;

}  // namespace

void SessionReport::add(const RankReport& moved, bool delivers) {
  move_seconds += moved.seconds;
  wait_seconds += moved.wait_seconds;
  finish_seconds += moved.finish_seconds;
  if (delivers) bytes += moved.bytes;
  sent += moved.sent;
  received += moved.received;
  copied += moved.copied;
  copies += moved.copies;
  messages += moved.messages;
}

ConversionCounts& ConversionCounts::operator+=(const ConversionCounts& more) {
  direct += more.direct;
  at_sender += more.at_sender;
  at_receiver += more.at_receiver;
  between += more.between;
  fell_back += more.fell_back;
  return *this;
}

double SessionReport::transfer_seconds() const {
  return std::max(0.0, move_seconds - wait_seconds - (bytes > 0 ? finish_seconds : 0));
}

double SessionReport::gigabytes_per_second() const {
  const double seconds_of_it = transfer_seconds();
  return seconds_of_it > 0 ? static_cast<double>(moved()) * 1e-9 / seconds_of_it : 0;
}

double copy_ceiling(int threads) {
  static std::mutex mutex;
  static std::map<int, double> known;
  const std::lock_guard lock(mutex);
  const auto found = known.find(threads);
  if (found != known.end() && found->second > 0) return found->second;
  const double seconds = plain_copy_seconds(kBytes, kBytes, threads);
  return known[threads] = seconds > 0 ? static_cast<double>(kBytes) * 1e-9 / seconds : 0;
}

}  // namespace reshard
