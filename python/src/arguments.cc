// SPDX-License-Identifier: Apache-2.0
// What is said of wrong arguments. nanobind's own words are several lines that name no argument,
// and "std::bad_cast" where a value is converted later; reshard/_arguments.py has better ones.
//
// Every function that nanobind binds begins, after its head, with the address of what Python calls
// (PEP 590). This file puts calls of its own there, which call nanobind's and look at what it
// raises: one for each of the few that nanobind has, so that a call that succeeds costs no look-up.
#include <array>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "python/src/support.h"

namespace reshard::python {
namespace {

using Call = PyObject* (*)(PyObject*, PyObject* const*, std::size_t, PyObject*);

constexpr std::size_t kMax = 16;  // nanobind has 6.
/// The highest bits of the number of arguments are flags, of Python and of nanobind.
constexpr std::size_t kCountBits = ~std::size_t{0} >> 8;
constexpr const char* kBadCast = "std::bad_cast";

std::array<Call, kMax> originals{};

/// True for an error that says no more than that arguments are wrong.
bool is_bare(const nb::python_error& error) {
  if (!error.matches(PyExc_TypeError)) return false;
  const std::string text = nb::str(error.value()).c_str();
  return text == kBadCast || text.find("(): incompatible function arguments.") != std::string::npos;
}

/// Replaces the words of the error that is set, if it is a bare one.
void explain(PyObject* function, PyObject* const* arguments, std::size_t count, PyObject* names) {
  nb::python_error error;
  try {
    if (is_bare(error)) {
      nb::list given;
      for (std::size_t i = 0; i < count; ++i) given.append(nb::handle(arguments[i]));
      nb::dict named;
      const Py_ssize_t num_names = names == nullptr ? 0 : PyTuple_Size(names);
      for (Py_ssize_t i = 0; i < num_names; ++i)
        named[nb::handle(PyTuple_GetItem(names, i))] =
            nb::handle(arguments[count + static_cast<std::size_t>(i)]);
      const nb::object text = nb::module_::import_("reshard._arguments")
                                  .attr("explain")(nb::handle(function), given, named);
      PyErr_SetObject(PyExc_TypeError, text.ptr());
      return;
    }
  } catch (nb::python_error& failed) {
    if (is_fatal(failed)) {
      failed.restore();
      return;
    }
  }
  error.restore();
}

template <std::size_t N>
PyObject* call(PyObject* function, PyObject* const* arguments, std::size_t count,
               PyObject* names) noexcept {
  PyObject* const result = originals[N](function, arguments, count, names);
  if (result != nullptr || PyErr_ExceptionMatches(PyExc_TypeError) == 0) return result;
  explain(function, arguments, count & kCountBits, names);
  return nullptr;
}

template <std::size_t... N>
constexpr std::array<Call, kMax> calls_of(std::index_sequence<N...>) {
  return {&call<N>...};
}
constexpr std::array<Call, kMax> kCalls = calls_of(std::make_index_sequence<kMax>());

/// The address of the function that Python calls, or 0, from the member that tells Python its
/// place. The stable ABI has no PyVectorcall_Function().
std::uintptr_t called(nb::handle function) {
  const nb::object address = nb::getattr(function, "__vectorcalloffset__", nb::none());
  return address.is_none() ? 0 : static_cast<std::uintptr_t>(nb::cast<std::intptr_t>(address));
}

void watch(nb::handle function) {
  const std::string_view type = nb::type_name(function.type()).c_str();
  if (!type.ends_with(".nb_func") && !type.ends_with(".nb_method")) return;
  auto* const slot =
      reinterpret_cast<Call*>(reinterpret_cast<char*>(function.ptr()) + sizeof(PyVarObject));
  // Another version of nanobind may lay them out in another way: then its own words stay.
  if (called(function) != reinterpret_cast<std::uintptr_t>(*slot)) return;
  for (std::size_t i = 0; i < kMax; ++i) {
    if (*slot == kCalls[i]) return;
    if (originals[i] == nullptr) originals[i] = *slot;
    if (originals[i] != *slot) continue;
    *slot = kCalls[i];
    return;
  }
}

void watch_class(nb::handle type) {
  for (const nb::handle member : nb::object(type.attr("__dict__").attr("values")())) {
    watch(member);
    if (nb::type_name(member.type()).c_str() != std::string_view("property")) continue;
    for (const char* part : {"fget", "fset"}) watch(nb::object(member.attr(part)));
  }
}

}  // namespace

/// @pre everything else is bound
void watch_arguments(nb::module_& m) {
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const nb::cast_error&) {
      PyErr_SetString(PyExc_TypeError, kBadCast);
    }
  });
  for (const nb::handle member : nb::object(m.attr("__dict__").attr("values")())) {
    watch(member);
    if (PyType_Check(member.ptr()) != 0) watch_class(member);
  }
}

}  // namespace reshard::python
