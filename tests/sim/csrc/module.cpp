// What tests see of the simulated accelerator; Python's half is in tests/sim/.
//
// The headers beside this file are parts of it: one unit, since torch's own headers take most of
// the time.

#include <torch/csrc/utils/pybind.h>

#include <pybind11/chrono.h>

#include "accelerator.h"
#include "backend.h"
#include "operators.h"
#include "toy_engine.h"
#include "transport/ipc/windows.h"

namespace py = pybind11;

namespace sim {
namespace {

const bool kSetUp = (set_up_devices(), true);
REGISTER_ALLOCATOR(kSim, &Memory::get())
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

namespace sim {
namespace {

/// What a stream was given while it was captured.
class CapturedGraph {
 public:
  CapturedGraph(int device, c10::StreamId stream) : device_(device), stream_(stream) {
    must(cudaStreamBeginCapture(origin(), cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
  }
  void end() {
    cudaGraph_t graph = nullptr;
    must(cudaStreamEndCapture(origin(), &graph), "cudaStreamEndCapture");
    must(cudaGraphInstantiate(&exec_, graph, 0), "cudaGraphInstantiate");
    for (const auto& node : graph->nodes) nodes_.push_back(node.what);
  }
  /// What it consists of, in words.
  const std::vector<std::string>& nodes() const { return nodes_; }
  void replay() const {
    const OnDevice on(device_);
    must(cudaGraphLaunch(exec_, native(current_stream(device_))), "cudaGraphLaunch");
  }

 private:
  cudaStream_t origin() const { return native(stream_of(device_, stream_)); }

  const int device_;
  const c10::StreamId stream_;
  cudaGraphExec_t exec_ = nullptr;
  std::vector<std::string> nodes_;
};

/// Holds a stream back, and its hardware queue, until it is opened.
class Gate {
 public:
  Gate(int device, c10::StreamId stream) : signal_(new shim::Signal) {
    const OnDevice on(device);
    must(shim::submit(native(stream_of(device, stream)), "a gate", {},
                      [signal = signal_] { signal->wait(); }),
         "a gate");
  }
  void open() { signal_->raise(); }

 private:
  shim::Signal* const signal_;  // not freed: whoever waits touches it to the end
};

}  // namespace
}  // namespace sim

PYBIND11_MODULE(_sim, module) {
  using sim::SimBackend;
  py::module_::import("torch.distributed");
  module.def("device_count", [] { return sim::kDevices; });
  module.def("current_device", [] { return sim::shim::current_device; });
  module.def("set_device",
             [](c10::DeviceIndex index) { sim::Guard().setDevice(c10::Device(sim::kSim, index)); });
  module.def(
      "synchronize", [](c10::DeviceIndex index) { sim::Guard().synchronizeDevice(index); },
      py::call_guard<py::gil_scoped_release>());
  module.def("sleep", [](int device, int64_t stream, int64_t microseconds) {
    sim::launch(sim::stream_of(device, stream), "a sleep", {},
                [microseconds] { usleep(static_cast<useconds_t>(microseconds)); });
  });
  module.def(
      "load_lazily",
      [](int device) {
        sim::shim::with_driver([device] {
          while (sim::shim::busy_streams[device].load(std::memory_order_relaxed) != 0) usleep(100);
        });
      },
      py::call_guard<py::gil_scoped_release>());
  module.def("sweep", &fastcomm::sweep_retired_windows);
  module.def("contexts", [] {
    std::vector<int> devices;
    for (int each = 0; each < sim::kDevices; ++each) {
      if (sim::shim::contexts[each]) devices.push_back(each);
    }
    return devices;
  });
  module.def("living", [](int device, size_t bytes) {
    return sim::shim::Runtime::get().living(device, bytes);
  });
  module.def(
      "do_nothing", [](bool nothing) { sim::shim::Runtime::get().empty = nothing; },
      py::arg("nothing") = true);
  module.def("streams_used", &sim::streams_used, py::arg("device"));
  module.def("hazards", [] { return sim::shim::Order::get().take_hazards(); });
  module.def("operators",
             [] { return std::make_pair(sim::counts().late.load(), sim::counts().waited.load()); });
  module.def("memory_allocated", [](int device) { return sim::Memory::get().allocated(device); });
  module.def("max_memory_allocated", [](int device) { return sim::Memory::get().peak(device); });
  module.def("reset_peak_memory_stats", [](int device) { sim::Memory::get().reset_peak(device); });
  module.def("toy_engine", [] {
    static const fastcomm::EngineMaker maker = toy::maker();
    return py::capsule(&maker, "fastcomm.EngineMaker");
  });
  module.def("toy_counts", [] { return std::make_pair(toy::submitted.load(), toy::left.load()); });
  py::class_<sim::Gate>(module, "Gate")
      .def(py::init<int, int64_t>(), py::arg("device"), py::arg("stream"))
      .def("open", &sim::Gate::open);
  py::class_<sim::CapturedGraph>(module, "CapturedGraph")
      .def(py::init<int, int64_t>(), py::arg("device"), py::arg("stream"))
      .def("end", &sim::CapturedGraph::end)
      .def("nodes", &sim::CapturedGraph::nodes)
      .def("replay", &sim::CapturedGraph::replay);
  py::class_<SimBackend, c10::intrusive_ptr<SimBackend>, ::c10d::Backend>(module, "SimBackend")
      .def(py::init(&sim::make_backend), py::arg("store"), py::arg("rank"), py::arg("size"),
           py::arg("timeout"), py::arg("machine") = "machine")
      .def("calls", &SimBackend::calls)
      .def("hang_next", &SimBackend::hang_next)
      .def("fail_next", &SimBackend::fail_next)
      .def("spoil_next", &SimBackend::spoil_next)
      .def("get_error", &SimBackend::getError);
}
