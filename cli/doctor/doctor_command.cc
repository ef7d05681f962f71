// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <sys/utsname.h>

#include <algorithm>

#include "cli/commands.h"
#include "cli/doctor/checks.h"
#include "cli/doctor/environment_report.h"
#include "cli/exit_code.h"
#include "cli/json_report.h"
#include "cli/measure.h"
#include "cli/table.h"
#include "reshard/base/number_text.h"

namespace reshard::cli {
namespace {

using doctor::Finding;
using State = Finding::State;

constexpr int kStateColumns = 7, kNameColumns = 16, kColumns = 110;

Index count(const std::vector<Finding>& findings, State state) {
  return std::ranges::count(findings, state, &Finding::state);
}

/// "Linux 6.1.0 x86_64"
std::string system_text() {
  utsname names{};
  if (::uname(&names) != 0) return "unknown system";
  return fmt::format("{} {} {}", names.sysname, names.release, names.machine);
}

std::string painted(State state, const Style& style) {
  const std::string word = state == State::absent    ? "-"
                           : state == State::problem ? "PROBLEM"
                                                     : name(state);
  const std::string text = fmt::format("{:<{}}", word, kStateColumns);
  return state == State::ok ? style.good(text) : state == State::problem ? style.bad(text) : text;
}

std::string finding_text(const Finding& f, const Style& style) {
  constexpr int kIndent = kStateColumns + kNameColumns + 4;
  const std::string start(kIndent, ' ');
  const auto block = [&](const std::string& text) {
    return wrapped(text, kColumns - kIndent, kIndent) + "\n";
  };
  std::string value = f.value;
  for (char& c : value)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  std::string out =
      fmt::format("  {}{:<{}}  {}", painted(f.state, style), f.name, kNameColumns, block(value));
  if (!f.effect.empty()) out += start + block(f.effect);
  if (!f.remedy.empty()) out += start + block("-> " + f.remedy);
  return out;
}

std::string doctor_text(const std::vector<Finding>& findings) {
  const Style style = Style::of_stdout();
  std::string out =
      style.title(fmt::format("reshard {} on {}", version_text(), system_text())) + "\n";
  for (const Finding& f : findings) out += finding_text(f, style);
  const Index problems = count(findings, State::problem), notes = count(findings, State::note);
  const std::string and_notes = notes > 0 ? fmt::format("; {}", plural(notes, "note")) : "";
  return out +
         (problems == 0 ? style.good("nothing stands in the way" + and_notes)
                        : style.bad(fmt::format("{}{}", plural(problems, "problem"), and_notes))) +
         "\n";
}

std::string doctor_json(const std::vector<Finding>& findings) {
  Json::Array list;
  for (const Finding& f : findings) list.push_back(to_json(f));
  return json_report("doctor", {{"version", Json(std::string(version_text()))},
                                {"system", Json(system_text())},
                                {"problems", Json(count(findings, State::problem))},
                                {"notes", Json(count(findings, State::note))},
                                {"findings", Json(std::move(list))}});
}

}  // namespace

Result<int> execute(const DoctorArguments& a) {
  if (a.environment) {
    print(a.json ? doctor::environment_json() : doctor::environment_text(Style::of_stdout()));
    return kDone;
  }
  const std::vector<Finding> findings = doctor::examine();
  print(a.json ? doctor_json(findings) : doctor_text(findings));
  return count(findings, State::problem) == 0 ? kDone : kFailed;
}

}  // namespace reshard::cli
