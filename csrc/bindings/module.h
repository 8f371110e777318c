// The parts of the module fastcomm._C, and their common tools.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <utility>

#include "c10d/choose/choose.h"
#include "c10d/edge/backend.h"

namespace fastcomm {

/// The functions of fastcomm/_distributed/device_engines.py. They take the GIL.
DeviceBackends device_backends();

/// FastcommBackend.explain() for a group; explain() for one that does not exist; operations(): the
/// names of all operations.
void bind_explain(pybind11::module_& module,
                  pybind11::class_<FastcommBackend, c10::intrusive_ptr<FastcommBackend>,
                                   ::c10d::Backend>& backend);

/// NativeWork, PeerWork, WorkOfMany and DelegateWork, whose get_future() returns our Future, and
/// future_of(). After torch.distributed.
void bind_futures(pybind11::module_& module);

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
