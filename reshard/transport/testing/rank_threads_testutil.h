// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "reshard/base/ids.h"
#include "reshard/base/result.h"

namespace reshard {

/// Runs body(rank) on n threads at once, for ranks 0 to n-1, and returns when all have returned.
///
/// The body returns void or Result<>. The result is the first failure in time, an error or an
/// exception, prefixed with its rank. If a body still runs after `limit`, the process prints which
/// ranks hang and aborts, because threads cannot be stopped.
template <class Body>
Result<> run_ranks(int n, Body body, std::chrono::seconds limit = std::chrono::seconds(120)) {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<bool> running(static_cast<std::size_t>(n), true);
  Result<> first;

  const auto run = [&](int r) {
    Result<> outcome;
    try {
      if constexpr (std::is_void_v<std::invoke_result_t<Body&, Rank>>) {
        body(Rank{r});
      } else {
        outcome = body(Rank{r});
      }
    } catch (const std::exception& e) {
      outcome = fail(Code::aborted, std::string("exception: ") + e.what());
    } catch (...) {
      outcome = fail(Code::aborted, "exception of an unknown type");
    }
    const std::lock_guard lock(mutex);
    if (!outcome && first)
      first = tl::unexpected(std::move(outcome).error().in("rank " + std::to_string(r)));
    running[static_cast<std::size_t>(r)] = false;
    changed.notify_all();
  };

  std::vector<std::jthread> threads;
  for (int r = 0; r < n; ++r) threads.emplace_back(run, r);
  std::unique_lock lock(mutex);
  const auto all_over = [&] {
    for (const bool is_running : running)
      if (is_running) return false;
    return true;
  };
  if (!changed.wait_until(lock, std::chrono::steady_clock::now() + limit, all_over)) {
    std::string hanging;
    for (std::size_t r = 0; r < running.size(); ++r)
      if (running[r]) hanging += " " + std::to_string(r);
    const std::string why = first ? "" : "; first failure: " + first.error().message;
    std::fprintf(stderr, "run_ranks: after %lld s these ranks of %d have not returned:%s%s\n",
                 static_cast<long long>(limit.count()), n, hanging.c_str(), why.c_str());
    std::abort();
  }
  lock.unlock();
  threads.clear();
  return first;
}

}  // namespace reshard
