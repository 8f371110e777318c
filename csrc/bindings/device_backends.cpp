#include <string>

#include "bindings/module.h"
#include "c10d/life/exception.h"

namespace py = pybind11;

namespace fastcomm {
namespace {

/// Calls a function of a module. Raises one of fastcomm's own errors as a TorchError.
template <class Result, class... Arguments>
Result call_of(const char* module, const char* function, const Arguments&... arguments) {
  const py::gil_scoped_acquire gil;
  try {
    const auto found = py::module_::import(module).attr(function);
    return found(arguments...).template cast<Result>();
  } catch (const py::error_already_set& error) {
    const auto own = as_torch_error(error.type().ptr(), error.value().ptr());
    if (own != nullptr) std::rethrow_exception(own);
    throw;
  }
}

/// Calls a function of fastcomm/_distributed/device_engines.py.
template <class Result, class... Arguments>
Result call(const char* function, const Arguments&... arguments) {
  return call_of<Result>("fastcomm._distributed.device_engines", function, arguments...);
}

std::string name_of(c10::DeviceType type) { return c10::DeviceTypeName(type, /*lower_case=*/true); }

}  // namespace

DeviceBackends device_backends() {
  DeviceBackends backends;
  backends.any = [] { return call<bool>("any_known"); };
  backends.known = [](c10::DeviceType type) { return call<bool>("known", name_of(type)); };
  backends.identify = [](c10::Device device) { return call<std::string>("identify", device); };
  backends.make = [](c10::Device device, const c10::intrusive_ptr<::c10d::Store>& store, int rank,
                     int size, Milliseconds timeout) {
    using NameAndBackend = std::pair<std::string, DelegateEngine::BackendPtr>;
    auto [name, backend] =
        call<NameAndBackend>("make", device, store, rank, size, timeout.count() / 1000.0);
    return DeviceBackends::Made{std::move(name), std::move(backend)};
  };
  backends.say_why_not = [](c10::DeviceType type, int size, const std::string& why) {
    call<void>("say_why_not", name_of(type), size, why);
  };
  backends.say_why_not_direct = [](c10::DeviceType type, int size, const std::string& other,
                                   const std::string& why) {
    call<void>("say_why_not_direct", name_of(type), size, other, why);
  };
  backends.warn_of_display = [](c10::Device device, Milliseconds timeout) {
    call<void>("warn_of_display", device, timeout.count() / 1000.0);
  };
  return backends;
}

GlooMaker gloo_maker() {
  return [](const c10::intrusive_ptr<::c10d::Store>& store, int rank, int size,
            Milliseconds timeout, const std::string& address) {
    return call_of<DelegateEngine::BackendPtr>("fastcomm._distributed.gloo", "make_lane", store,
                                               rank, size, timeout.count() / 1000.0, address);
  };
}

}  // namespace fastcomm
