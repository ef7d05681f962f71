// SPDX-License-Identifier: Apache-2.0
#include "python/src/support.h"

namespace reshard::python {
namespace {

/// The Python class for a code (reshard/_errors.py). @pre the GIL is held
nb::object class_of(Code code) {
  const nb::object classes = nb::module_::import_("reshard._errors").attr("BY_CODE");
  return classes[nb::cast(name(code))];
}

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Raised& raised) {
    const Error& error = raised.error();
    // Messages quote names from files, which need not be UTF-8.
    const nb::object message = nb::steal(PyUnicode_DecodeUTF8(
        error.message.data(), static_cast<Py_ssize_t>(error.message.size()), "replace"));
    PyErr_SetObject(class_of(error.code).ptr(), message.ptr());
  }
}

}  // namespace

void raise(Code code, std::string message) { throw Raised(Error{code, std::move(message)}); }

void register_errors(nb::module_&) {
  nb::module_::import_("reshard._errors");
  nb::register_exception_translator(translate);
}

}  // namespace reshard::python
