// SPDX-License-Identifier: Apache-2.0
// Classes whose objects hold Python objects and may be part of a reference cycle.
#pragma once

#include "python/src/support.h"

namespace reshard::python {

/// Lets Python's garbage collector look into a class with the members traverse(visit, arg) and
/// clear(): pass it to nb::class_ as a further argument.
template <class T>
nb::type_slots collectable() {
  static PyType_Slot slots[] = {
      {Py_tp_traverse, reinterpret_cast<void*>(+[](PyObject* self, visitproc visit, void* arg) {
         Py_VISIT(Py_TYPE(self));
         return nb::inst_ready(self) ? nb::inst_ptr<T>(self)->traverse(visit, arg) : 0;
       })},
      {Py_tp_clear, reinterpret_cast<void*>(+[](PyObject* self) {
         if (nb::inst_ready(self)) nb::inst_ptr<T>(self)->clear();
         return 0;
       })},
      {0, nullptr}};
  return nb::type_slots(slots);
}

}  // namespace reshard::python
