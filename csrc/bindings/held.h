// Python objects that C++ keeps alive.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <utility>

namespace fastcomm {

/// A reference that may be dropped without the GIL; after the interpreter's end it is leaked.
template <class Object>
std::shared_ptr<Object> held(Object object) {
  return {new Object(std::move(object)), [](Object* known) {
            if (!Py_IsInitialized()) return;
            const pybind11::gil_scoped_acquire gil;
            delete known;
          }};
}

}  // namespace fastcomm
