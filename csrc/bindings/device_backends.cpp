#include "bindings/device_backends.h"

#include <torch/csrc/utils/pybind.h>

#include <string>

namespace py = pybind11;

namespace fastcomm {

DeviceBackends device_backends() {
  const auto python = [](const char* name) {
    return py::module_::import("fastcomm._distributed.device_engines").attr(name);
  };
  const auto type_name = [](c10::DeviceType type) { return c10::DeviceTypeName(type, true); };
  DeviceBackends backends;
  backends.any = [python] {
    const py::gil_scoped_acquire gil;
    return py::cast<bool>(python("any_known")());
  };
  backends.known = [python, type_name](c10::DeviceType type) {
    const py::gil_scoped_acquire gil;
    return py::cast<bool>(python("known")(type_name(type)));
  };
  backends.identify = [python](c10::Device device) {
    const py::gil_scoped_acquire gil;
    return py::cast<std::string>(python("identify")(device));
  };
  backends.make = [python](c10::Device device, const c10::intrusive_ptr<::c10d::Store>& store,
                           int rank, int size, Milliseconds timeout) {
    const py::gil_scoped_acquire gil;
    const py::tuple made = python("make")(device, store, rank, size, timeout.count() / 1000.0);
    return DeviceBackends::Made{py::cast<std::string>(made[0]),
                                py::cast<DelegateEngine::BackendPtr>(made[1])};
  };
  backends.say_why_not = [python, type_name](c10::DeviceType type, int size,
                                             const std::string& why) {
    const py::gil_scoped_acquire gil;
    python("say_why_not")(type_name(type), size, why);
  };
  backends.say_why_not_direct = [python, type_name](c10::DeviceType type, int size,
                                                    const std::string& other,
                                                    const std::string& why) {
    const py::gil_scoped_acquire gil;
    python("say_why_not_direct")(type_name(type), size, other, why);
  };
  return backends;
}

}  // namespace fastcomm
