#include "bindings/module.h"
#include "c10d/edge/direct_call.h"

namespace py = pybind11;

namespace fastcomm {
void bind_prepared(py::module_& module) {
  const auto released = py::call_guard<py::gil_scoped_release>();
  py::class_<PreparedCall>(module, "PreparedCall")
      .def(py::init([](c10::intrusive_ptr<::c10d::Backend> backend, const std::string& operation,
                       Tensors inputs, Tensors outputs, const std::string& op, int64_t root,
                       std::vector<int64_t> input_splits, std::vector<int64_t> output_splits,
                       std::optional<double> timeout_s) {
        DirectCall call{
            named(operation, op_kind_name, 1, kNumOpKinds), {}, {}, reduction_named(op), root};
        if (timeout_s) call.timeout = Milliseconds(static_cast<int64_t>(*timeout_s * 1000));
        return std::make_unique<PreparedCall>(std::move(backend), std::move(call),
                                              std::move(inputs), std::move(outputs),
                                              std::move(input_splits), std::move(output_splits));
      }))
      .def("__call__", &PreparedCall::run, released)
      .def("start", &PreparedCall::start, released)
      .def("wait", &PreparedCall::wait, released);
}

}  // namespace fastcomm
