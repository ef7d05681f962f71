// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "reshard/io/files/json.h"

namespace reshard::cli::doctor {

/// One subject that `reshard doctor` looked at.
struct Finding {
  enum class State : std::uint8_t {
    ok,       ///< suffices.
    note,     ///< works, but slower or not for everything: `effect` says which.
    absent,   ///< something that a machine need not have.
    problem,  ///< refits fail because of it.
  };
  std::string name;
  State state = State::ok;
  std::string value = {};     ///< in words.
  std::string effect = {};    ///< the consequence; empty if there is none.
  std::string remedy = {};    ///< how to change it; may be empty.
  Json::Object figures = {};  ///< the value for programs.
};

/// "ok", "note", "absent", "problem".
std::string name(Finding::State state);

/// The finding as an object with the keys `name`, `state`, `value`, `effect`, `remedy`, `figures`.
Json to_json(const Finding& finding);

/// Calls look() in a child process, so that a driver or a file system that crashes or never answers
/// cannot end or stop this one. The child has no standard streams. If it does not answer within
/// `seconds`, or crashes, the result is one finding with the name and the state `otherwise` that
/// says so. @pre this process has one thread
std::vector<Finding> look_in_child(const std::string& name, double seconds,
                                   Finding::State otherwise,
                                   const std::function<std::vector<Finding>()>& look);

}  // namespace reshard::cli::doctor
