// The parts of the module fastcomm._C, and their common tools.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <string>
#include <utility>

#include "c10d/choose/choose.h"
#include "c10d/edge/backend.h"

namespace fastcomm {

/// The functions of fastcomm/_distributed/device_engines.py. They take the GIL.
DeviceBackends device_backends();
/// That of fastcomm/_distributed/gloo.py, likewise.
GlooMaker gloo_maker();

/// FastcommBackend.explain() for a group; explain() for one that has not been formed; operations():
/// the names of all operations.
void bind_explain(pybind11::module_& module,
                  pybind11::class_<FastcommBackend, c10::intrusive_ptr<FastcommBackend>,
                                   ::c10d::Backend>& backend);

/// device_facts() and device_contexts(): what `fastcomm check` prints besides its findings.
void bind_device_facts(pybind11::module_& module);

/// records_fd(): the file of this process's records, None if there is none; why_no_records();
/// records_layout(): numbers of fastcomm/_records/layout.py.
void bind_records(pybind11::module_& module);

/// The works of all engines, whose get_future() returns our Future, and future_of(). Called after
/// the import of torch.distributed, which binds their base class.
void bind_futures(pybind11::module_& module);

/// PreparedCall, called after bind_futures().
void bind_prepared(pybind11::module_& module);

/// The first value from `begin` on, below `end`, whose `name_of` is `name`; else kOther.
template <class Kind>
Kind named(const std::string& name, const char* (*name_of)(Kind), int begin, int end) {
  for (int number = begin; number < end; ++number) {
    const auto kind = static_cast<Kind>(number);
    if (name == name_of(kind)) return kind;
  }
  return Kind::kOther;
}

/// A reference to a Python object. It may be dropped without the GIL, and is leaked after the end
/// of the interpreter.
template <class Object>
std::shared_ptr<Object> held(Object object) {
  return {new Object(std::move(object)), [](Object* owned) {
            if (!Py_IsInitialized()) return;
            const pybind11::gil_scoped_acquire gil;
            delete owned;
          }};
}

}  // namespace fastcomm
