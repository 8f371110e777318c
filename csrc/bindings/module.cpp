// The native functions that fastcomm/*.py uses.

#include <unistd.h>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <tuple>
#include <type_traits>
#include <variant>

#include "bindings/module.h"
#include "c10d/edge/shared_tensor.h"
#include "c10d/edge/span_tracks.h"
#include "c10d/life/exception.h"
#include "c10d/life/flight_recorder.h"
#include "c10d/life/groups.h"
#include "c10d/life/hooks.h"
#include "c10d/life/store_bootstrap.h"
#include "c10d/life/watch.h"
#include "core/call_site.h"
#include "core/env.h"
#include "core/host_cache.h"
#include "core/tuning.h"
#include "kernels/cuda/reduce_spec.h"
#include "kernels/isa.h"
#include "ops/device_lists.h"
#include "ops/fused_lists.h"
#include "ops/list_routes.h"
#include "ops/random_streams.h"
#include "ops/tensor_lists.h"
#include "tensors/accelerator.h"
#include "transport/bootstrap.h"
#include "transport/cores.h"
#if defined(FC_DEVICES)
#include "ops/device_ranks.h"
#endif

namespace py = pybind11;

namespace fastcomm {
namespace {

/// Raises KeyboardInterrupt and the like in the middle of a wait. Signals are handled only on the
/// main thread: no other thread takes the GIL for them.
void check_signals() {
  if (getpid() != gettid()) return;
  py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

/// The text that a Python function returns: only for messages, so its errors do not matter.
template <class... Arguments>
std::string text_of(const char* module, const char* function, const Arguments&... arguments) {
  const py::gil_scoped_acquire gil;
  try {
    return py::cast<std::string>(py::module_::import(module).attr(function)(arguments...));
  } catch (const std::exception&) {
    return "";
  }
}

/// Text for the peers.
std::string failure_of_program(bool at_the_end) {
  if (!Py_IsInitialized()) return "";
  return text_of("fastcomm.errors", "failure_in_progress", at_the_end);
}

std::string call_site_of_program() {
  // torch's own threads run no code of the program.
  if (!Py_IsInitialized() || PyGILState_GetThisThreadState() == nullptr) return "";
  return text_of("fastcomm._distributed.call_site", "call_site");
}

/// The value of a setting in force, in the unit of its variable.
py::object value_of(const Setting& setting, const Environment& env) {
  return std::visit(
      [&](auto member) -> py::object {
        using Member = decltype(member);
        if constexpr (std::is_same<Member, uint64_t Environment::*>::value) {
          return py::int_(env.*member / setting.unit);
        } else if constexpr (std::is_same<Member, int64_t Environment::*>::value ||
                             std::is_same<Member, double Environment::*>::value) {
          return py::cast(env.*member);
        } else if constexpr (std::is_same<Member, std::string Environment::*>::value) {
          return py::str(env.*member);
        } else if constexpr (std::is_same<Member, bool Environment::*>::value) {
          const std::string fallback = setting.fallback;
          return py::str(!(env.*member) ? "off" : fallback == "off" ? "on" : fallback);
        } else {
          return py::str(setting_text(setting));
        }
      },
      setting.member);
}

/// Name and value of every setting.
py::dict environment_dict() {
  const Environment& env = environment();
  py::dict result;
  for (const Setting& setting : settings()) result[setting.name] = value_of(setting, env);
  return result;
}

/// Every setting: name, default, allowed values, effect.
std::vector<std::tuple<std::string, std::string, std::string, std::string>> setting_rows() {
  std::vector<std::tuple<std::string, std::string, std::string, std::string>> rows;
  for (const Setting& setting : settings()) {
    rows.emplace_back(setting.name, setting.fallback, allowed_values(setting), setting.effect);
  }
  return rows;
}

/// The type of the devices that the kernels serve, "" if the library was built for none.
std::string accelerator_type() {
#if defined(FC_DEVICES)
  return c10::DeviceTypeName(kAccelerator, /*lower_case=*/true);
#else
  return "";
#endif
}

/// The CUDA devices of this process, and the access of each to the tensors on the others, which is
/// tried here if it has not been tried yet.
py::dict cuda_devices() {
  std::string reason;  // why there are none; "" if there are some
  std::vector<std::string> names;
  std::vector<std::vector<std::pair<std::string, std::string>>> access;  // kind and reason
#if defined(FC_DEVICES)
  {
    const py::gil_scoped_release released;  // a probe may take seconds
    int count = 0;
    const cudaError_t result = cudaGetDeviceCount(&count);
    if (result != cudaSuccess || count == 0) {
      forget_error(result);
      reason = "no CUDA device";
      if (result != cudaSuccess) reason += concat(": ", cudaGetErrorString(result));
      count = 0;
    }
    for (int device = 0; device < count; ++device) {
      names.push_back(device_name(device));
      access.emplace_back();
      for (int peer = 0; peer < count; ++peer) {
        const Access& found = tensor_access().between(device, peer);
        access.back().emplace_back(access_kind_name(found.kind), found.reason);
      }
    }
  }
#else
  reason = "built without CUDA";
#endif
  return py::dict(py::arg("reason") = reason, py::arg("names") = names, py::arg("access") = access);
}

GradientOptions gradient_options(bool average, double unscale, std::optional<at::ScalarType> wire,
                                 int norm) {
  return {{average, unscale, static_cast<NormKind>(norm)}, wire, {}, {}};
}

Milliseconds milliseconds(double seconds) {
  return Milliseconds(static_cast<int64_t>(seconds * 1000));
}
std::optional<Milliseconds> milliseconds(std::optional<double> seconds) {
  return seconds ? std::make_optional(milliseconds(*seconds)) : std::nullopt;
}

/// The work, or None if it is done, and the results; nothing if there is no native path.
auto as_pair(const std::optional<FastcommBackend::Fused>& fused) {
  return fused ? std::make_optional(std::make_pair(fused->work, fused->results)) : std::nullopt;
}

/// Fused reductions (fastcomm/_gradients/fused.py). A norm is a NormKind.
void bind_fused(py::module_& module) {
  module.def(
      "fused_sum_lists",
      [](const std::vector<TensorList>& sources, bool average, double unscale,
         std::optional<at::ScalarType> wire, int norm) {
        return fused_sum_lists(sources, gradient_options(average, unscale, wire, norm));
      },
      py::call_guard<py::gil_scoped_release>());
  module.def(
      "gradient_norms",
      [](const TensorList& gradients, int norm) {
        return gradient_norms(gradients, static_cast<NormKind>(norm));
      },
      py::call_guard<py::gil_scoped_release>());
  module.def("norm_of_parts", [](const at::Tensor& parts, int norm) {
    return norm_of(parts, static_cast<NormKind>(norm));
  });
}

/// Lists of tensors (fastcomm/_devices/lists.py); None if torch has to do the work.
void bind_lists(py::module_& module) {
  using Lists = std::vector<TensorList>;
  module.def("copy_lists", routed_copies, py::call_guard<py::gil_scoped_release>());
  module.def("sum_lists", routed_sums, py::call_guard<py::gil_scoped_release>());
  // Returns the copies, and the number of bytes written to them.
  module.def(
      "refresh_lists",
      [](const TensorList& tensors, Lists copies) {
        const int64_t written = refresh_lists(tensors, copies);
        return std::make_pair(std::move(copies), written);
      },
      py::call_guard<py::gil_scoped_release>());
  module.def("send_device_list", send_device_list, py::call_guard<py::gil_scoped_release>());
  module.def(
      "refresh_device_lists",
      [](const TensorList& tensors, const std::vector<int>& devices, Lists copies) {
        const std::optional<int64_t> written = refresh_device_lists(tensors, devices, copies);
        return std::make_pair(std::move(copies), written);
      },
      py::call_guard<py::gil_scoped_release>());
}

void bind_random(py::module_& module) {
  py::class_<RandomPass, std::shared_ptr<RandomPass>>(module, "RandomPass")
      .def(py::init([] { return std::make_shared<RandomPass>(); }))
      .def("enter", &RandomPass::enter)
      .def("leave", [](const RandomPass&) { RandomPass::leave(); })
      .def("settle", &RandomPass::settle);
  module.def("random_generator", random_generator);
}

}  // namespace

PYBIND11_MODULE(_C, module) {
  g_interrupt_check = check_signals;
  g_failure = failure_of_program;
  g_call_site = call_site_of_program;
  g_device_backends = device_backends();
  g_make_gloo = gloo_maker();
  register_span_tracks();

  // A thread that enters from C++ an interpreter that is shutting down aborts the process.
  py::module_::import("atexit").attr("register")(py::cpp_function(
      [] {
        stop_continuations();
        stop_progress();
        finish_flight_recorder();
        stop_watches();
        stop_continuations();  // those whose wait would never end
      },
      py::call_guard<py::gil_scoped_release>()));

  py::register_exception_translator([](std::exception_ptr error) {
    try {
      if (error) std::rethrow_exception(error);
    } catch (TorchError& e) {
      PyErr_SetString(e.python_type(), e.what());
    } catch (const Error& e) {
      PyErr_SetString(TorchError(e.code(), "").python_type(), e.what());
    }
  });

  module.def("register_error_type", [](int code, const py::object& type) {
    register_error_type(static_cast<ErrorCode>(code), type.ptr());
  });

  py::module_::import("torch.distributed");  // binds the base class
  py::class_<FastcommBackend, c10::intrusive_ptr<FastcommBackend>, ::c10d::Backend> backend(
      module, "FastcommBackend");
  backend
      .def_property_readonly("native", [](const FastcommBackend& b) { return b.traits().native; })
      .def_property_readonly("slot_bytes",
                             [](const FastcommBackend& b) { return b.traits().layout.total(); })
      .def_property_readonly("transport",
                             [](const FastcommBackend& b) { return b.traits().transport; })
      .def_property_readonly("why_not_native",
                             [](const FastcommBackend& b) { return b.traits().why_not_native; })
      .def_property_readonly("why_not_composed",
                             [](const FastcommBackend& b) { return b.why_not_composed(); })
      // The ranks of each host, where operations are composed of what hosts do; and the bytes of a
      // short message and of a chunk between them (0: by the message).
      .def_property_readonly("hosts", [](const FastcommBackend& b) { return b.hosts(); })
      .def_property_readonly("host_thresholds",
                             [](const FastcommBackend& b) {
                               const HostThresholds& taken = b.host_thresholds();
                               return std::make_pair(taken.short_bytes, taken.chunk_bytes);
                             })
      // The backend that does everything, or nearly, if the ranks do not share memory; else None.
      .def_property_readonly("delegate", [](const FastcommBackend& b) { return b.delegate(); })
      .def("delegate_to", &FastcommBackend::delegate_to, py::call_guard<py::gil_scoped_release>())
      .def("get_error", &FastcommBackend::getError, py::call_guard<py::gil_scoped_release>())
      .def(
          "raise_failure",
          [](FastcommBackend& backend, const std::string& operation) {
            backend.raise_failure(operation.c_str());
          },
          py::call_guard<py::gil_scoped_release>())
      // A tensor, or None (an undefined one), with the reason if there is none.
      .def(
          "shared_empty_on",
          [](FastcommBackend& backend, const std::vector<int64_t>& sizes, at::ScalarType dtype,
             at::Device device) {
            std::string why;
            const c10::DeviceGuard guard(device);
            at::Tensor made = backend.shared_empty_on(device, sizes, dtype, why);
            return std::make_pair(std::move(made), std::move(why));
          },
          py::call_guard<py::gil_scoped_release>())
      // torch's new_group() calls it on non-members, if the default group is bound to a device.
      .def("perform_nocolor_split", [](FastcommBackend&, const py::object&) {})
      // Replaces torch's, which would answer as for DDP's reducer: FSDP2 wants `size` elements.
      .def(
          "allocate_tensor",
          [](FastcommBackend& backend, long size, at::ScalarType dtype, at::Device device) {
            return backend.allocate_elements(size, at::TensorOptions().dtype(dtype).device(device));
          },
          py::arg("size"), py::kw_only(), py::arg("dtype"), py::arg("device"),
          py::call_guard<py::gil_scoped_release>())
      // fused_all_reduce, or with shards fused_reduce_scatter.
      .def(
          "fused_reduce",
          [](FastcommBackend& backend, const TensorList& gradients, bool average, double unscale,
             std::optional<at::ScalarType> wire, int norm, std::optional<double> timeout_s,
             bool async, std::vector<ShardOffsets> shards, TensorList residuals) {
            GradientOptions options = gradient_options(average, unscale, wire, norm);
            options.shards = std::move(shards);
            options.residuals = std::move(residuals);
            return as_pair(
                backend.fused_reduce(gradients, options, milliseconds(timeout_s), async));
          },
          py::call_guard<py::gil_scoped_release>())
      .def(
          "gather_shards",
          [](FastcommBackend& backend, const TensorList& tensors,
             const std::vector<ShardOffsets>& shards, std::optional<double> timeout_s, bool async) {
            return as_pair(backend.gather_shards(tensors, shards, milliseconds(timeout_s), async));
          },
          py::call_guard<py::gil_scoped_release>());

  // Comes before any wait for all ranks, which would not name a missing or wrong one. Returns a
  // number that only this group has.
  module.def(
      "agree",
      [](const c10::intrusive_ptr<::c10d::Store>& store, int rank, int size, double timeout_s,
         const std::string& problem, const std::string& label) {
        StoreBootstrap bootstrap(store);
        bootstrap.label = label;
        const Deadline deadline = deadline_after(milliseconds(timeout_s));
        return agree(bootstrap, rank, size, "", deadline, problem).nonce;
      },
      py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout_s"), py::arg("problem"),
      py::arg("label"), py::call_guard<py::gil_scoped_release>());

  module.def(
      "create_backend",
      [](const c10::intrusive_ptr<::c10d::Store>& store, int rank, int size, double timeout_s,
         const c10::intrusive_ptr<::c10d::Store>& lane_store, py::object kept,
         const std::string& label, std::vector<uint64_t> members) {
        std::shared_ptr<void> alive = held(std::move(kept));
        const py::gil_scoped_release released;
        return c10::make_intrusive<FastcommBackend>(store, rank, size, milliseconds(timeout_s),
                                                    lane_store, std::move(alive), label,
                                                    std::move(members));
      },
      py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout_s"),
      py::arg("lane_store"), py::arg("kept"), py::arg("label"), py::arg("members"));

  module.def("shared_empty", [](const std::vector<int64_t>& sizes, at::ScalarType dtype) {
    return shared_empty(sizes, dtype);
  });
  module.def("is_shared", is_shared);

  // An engine from outside, for groups that are formed from here on: a capsule of an EngineMaker
  // (c10d/engines/engine.h), which is copied.
  module.def("register_engine", [](const py::capsule& maker) {
    const char* const name = maker.name();
    if (name == nullptr || std::string(name) != "fastcomm.EngineMaker") {
      throw py::type_error("register_engine() takes a capsule named fastcomm.EngineMaker");
    }
    register_engine(*maker.get_pointer<const EngineMaker>());
  });

  // None while nothing is recorded.
  module.def(
      "flight_recorder_dump",
      [](bool with_stacks, bool only_active) -> py::object {
        std::optional<std::string> dump;
        {
          const py::gil_scoped_release released;  // stack traces take the GIL when they need it
          dump = flight_recorder_dump(with_stacks, only_active);
        }
        return dump ? py::object(py::bytes(*dump)) : py::object(py::none());
      },
      py::arg("with_stacks"), py::arg("only_active"));
  module.def("write_flight_recorder", write_flight_recorder,
             py::call_guard<py::gil_scoped_release>());

  bind_futures(module);
  bind_prepared(module);
  bind_explain(module, backend);
  bind_lists(module);
  bind_fused(module);
  bind_random(module);
  module.def("empty_cache", [] { HostCache::instance().clear(); });
  module.def("why_no_shared_memory", why_no_shared_memory);
  module.def("environment", environment_dict);
  module.def("settings", setting_rows);
  module.def(
      "set_tuning",
      [](int ranks, uint64_t payload_bytes, uint64_t block_bytes, uint64_t slot_bytes,
         int device_blocks, int pulls) {
        set_tuning(ranks, {payload_bytes, block_bytes, slot_bytes, device_blocks, pulls != 0});
      },
      py::arg("ranks"), py::arg("payload_bytes") = 0, py::arg("block_bytes") = 0,
      py::arg("slot_bytes") = 0, py::arg("device_blocks") = 0, py::arg("pulls") = 0);
  module.def(
      "set_host_tuning",
      [](int hosts, int ranks, uint64_t short_bytes, uint64_t chunk_bytes) {
        set_host_tuning(hosts, ranks, {short_bytes, chunk_bytes});
      },
      py::arg("hosts"), py::arg("ranks"), py::arg("short_bytes") = 0, py::arg("chunk_bytes") = 0);
  module.attr("MAX_RANKS") = kMaxRanks;  // of a native group
  module.attr("MAX_DEVICES") =
      kMaxReduceSources;  // of replicas, and of ranks whose devices reach each other
  module.def("accelerator_type", accelerator_type);
  module.def("cuda_devices", cuda_devices);
  bind_device_facts(module);
  bind_records(module);
  module.def("reduce_isa", [] { return std::string(isa_name()); });
  module.def("usable_cores", usable_cores);
  module.def("quota_cores", py::overload_cast<const std::string&, const std::string&>(quota_cores));
  // Of each rank, the numbers of the cores on which it may run.
  module.def("outnumber_cores", [](const std::vector<std::vector<int>>& ranks) {
    std::vector<CoreSet> sets;
    for (const auto& cores : ranks) {
      CoreSet& set = sets.emplace_back();
      for (const int core : cores) set.at(core / 64) |= uint64_t{1} << core % 64;
    }
    return outnumber_cores(sets);
  });
}

}  // namespace fastcomm
