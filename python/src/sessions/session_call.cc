// SPDX-License-Identifier: Apache-2.0
#include "python/src/sessions/session_call.h"

#include <fmt/format.h>

namespace reshard::python {

std::string text_of(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Raised& raised) {
    return raised.error().message;
  } catch (const nb::python_error& error) {
    const std::string text = nb::str(error.value()).c_str();
    return fmt::format("{}{}{}", nb::str(error.type().attr("__name__")).c_str(),
                       text.empty() ? "" : ": ", text.substr(0, text.find('\n')));
  } catch (const std::exception& error) {
    return error.what();
  }
}

void add_note(const std::exception_ptr& thrown, const std::string& note) {
  try {
    std::rethrow_exception(thrown);
  } catch (nb::python_error& error) {
    nb::borrow(error.value()).attr("add_note")(note);
  }
}

Result<> TensorSession::Call::enter(SessionPhase phase) {
  std::string why;
  const bool went_on = on_phase_.call([&](const nb::object& function) {
    try {
      function(name(phase));
    } catch (...) {
      why = text_of(std::current_exception());
      throw;
    }
  });
  if (went_on) return {};
  return fail(Code::aborted, fmt::format("on_phase('{}') raised {}", name(phase), why));
}

}  // namespace reshard::python
