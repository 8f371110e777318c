// What tests see of the simulated accelerator; Python's half is in tests/sim/.
//
// The headers beside this file are parts of it: one unit, since torch's own headers take most of the time.

#include <torch/csrc/utils/pybind.h>

#include <pybind11/chrono.h>

#include "backend.h"
#include "device.h"
#include "operators.h"

namespace py = pybind11;

namespace sim {
namespace {

Memory memory;
REGISTER_ALLOCATOR(kSim, &memory)
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)
const bool kRegistered = (at::RegisterPrivateUse1HooksInterface(new Hooks), true);

/// Over a Gloo group of its own, which torch's Python makes: its headers are not everywhere.
c10::intrusive_ptr<SimBackend> make_backend(const c10::intrusive_ptr<::c10d::Store>& store,
                                            int rank, int size, Milliseconds timeout,
                                            const std::string& machine) {
  const auto distributed = py::module_::import("torch.distributed");
  const auto under = [&](const char* prefix) {
    return distributed.attr("PrefixStore")(prefix, store);
  };
  const auto gloo = distributed.attr("ProcessGroupGloo")(under("sim/gloo/"), rank, size,
                                                         py::arg("timeout") = timeout);
  return c10::make_intrusive<SimBackend>(py::cast<c10::intrusive_ptr<::c10d::Store>>(under("sim/")),
                                         rank, size, timeout,
                                         py::cast<SimBackend::BackendPtr>(gloo), machine);
}

}  // namespace
}  // namespace sim

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  using sim::SimBackend;
  py::module_::import("torch.distributed");
  module.def("device_count", [] { return sim::kDevices; });
  module.def("current_device", [] { return sim::current_device; });
  module.def("set_device",
             [](c10::DeviceIndex index) { sim::Guard().setDevice(c10::Device(sim::kSim, index)); });
  py::class_<SimBackend, c10::intrusive_ptr<SimBackend>, ::c10d::Backend>(module, "SimBackend")
      .def(py::init(&sim::make_backend), py::arg("store"), py::arg("rank"), py::arg("size"),
           py::arg("timeout"), py::arg("machine") = "machine")
      .def("calls", &SimBackend::calls)
      .def("hang_next", &SimBackend::hang_next)
      .def("fail_next", &SimBackend::fail_next)
      .def("spoil_next", &SimBackend::spoil_next)
      .def("get_error", &SimBackend::getError);
}
