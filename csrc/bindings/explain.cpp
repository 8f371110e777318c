#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <string>
#include <vector>

#include "bindings/module.h"
#include "coll/operations.h"
#include "coll/select.h"
#include "core/env.h"

namespace py = pybind11;

namespace fastcomm {
namespace {

Query query_of(const std::string& operation, uint64_t count, const std::string& dtype,
               const std::string& op) {
  Query query;
  query.kind = named(operation, op_kind_name, 1, kNumOpKinds);
  query.dtype = named(dtype, dtype_name, 0, kNumDTypes);
  const OperationRow& row = row_of(query.kind);
  if (row.reduces) query.op = named(op, reduce_op_name, 1, kNumReduceOps);
  query.bytes = row.has_data ? count * dtype_size(query.dtype) : 0;
  return query;
}

/// `engine` names the backend that carries out a delegated call; "": none does.
py::dict explanation_of(const Query& query, const Selection& selection, std::string engine) {
  py::dict result;
  const bool delegated = selection.algorithm == Algorithm::kDelegated;
  std::transform(engine.begin(), engine.end(), engine.begin(),
                 [](unsigned char letter) { return std::tolower(letter); });
  result["native"] = !delegated;
  result["algorithm"] = !delegated       ? algorithm_name(selection.algorithm)
                        : engine.empty() ? "refused"
                                         : engine;
  result["bytes"] = query.bytes;
  result["reason"] = selection.reason;
  result["on_device"] = false;
  return result;
}

/// Nothing if the engine for tensors on `device` is not decided yet.
std::optional<py::dict> explain(const FastcommBackend& backend, const std::string& device,
                                const Query& query) {
  c10::Device place(device);
  if (!place.has_index() && !place.is_cpu() && !place.is_meta()) {
    place = c10::impl::VirtualGuardImpl(place.type()).getDevice();
  }
  const Engines::Route route = backend.engines().route_of(place);
  const auto takes = [&](const Engine* engine) { return engine->takes(query); };
  const auto serving = std::find_if(route.begin(), route.end(), takes);
  if (serving == route.end()) return std::nullopt;
  const Engine& engine = **serving;
  Selection selection = engine.explain(query);
  if (&engine == &backend.engines().host() && !backend.traits().native) {
    const std::string& why_not_composed = backend.why_not_composed();
    selection.reason = backend.traits().why_not_native;
    if (why_not_composed.empty()) {
      selection.reason += "; of several hosts this operation is not composed";
    } else if (selection.reason.rfind(why_not_composed, 0) != 0) {  // else that was not tried
      selection.reason += "; not composed of hosts: " + why_not_composed;
    }
  }
  const bool kernels_declined = std::any_of(route.begin(), serving, [](const Engine* earlier) {
    return earlier->is_native() && earlier->is_on_devices();
  });
  const std::string why_not_direct = backend.engines().why_not_direct(place);
  if (kernels_declined) {
    selection.reason += "; the devices' own kernels do not do this";
  } else if (!why_not_direct.empty()) {
    selection.reason += concat("; not from device to device: ", why_not_direct);
  }
  py::dict result = explanation_of(query, selection, engine.is_native() ? "" : engine.name());
  result["on_device"] = engine.is_on_devices();
  return result;
}

/// The traits that a group of `size` ranks would have on this machine, with this environment.
GroupTraits imagined_group(int size) {
  const Environment& env = environment();
  GroupTraits traits;
  traits.size = size;
  traits.native = size == 1 || (env.transport != "gloo" && size <= kMaxRanks);
  traits.why_not_native = env.transport == "gloo"
                              ? "FASTCOMM_TRANSPORT=gloo"
                              : concat("a native group has at most ", kMaxRanks, " ranks");
  traits.transport = size == 1 ? "one rank" : "shared memory, if a probe confirms it";
  const ChosenSizes chosen = choose_slot_sizes(size);
  traits.layout = scratch_layout(chosen.sizes, size);
  traits.payload_by = chosen.payload_by;
  return traits;
}

}  // namespace

void bind_explain(
    py::module_& module,
    py::class_<FastcommBackend, c10::intrusive_ptr<FastcommBackend>, ::c10d::Backend>& backend) {
  backend.def("explain", [](const FastcommBackend& backend, const std::string& device,
                            const std::string& operation, uint64_t count, const std::string& dtype,
                            const std::string& op) {
    return explain(backend, device, query_of(operation, count, dtype, op));
  });

  module.def("explain", [](int size, const std::string& operation, uint64_t count,
                           const std::string& dtype, const std::string& op) {
    const GroupTraits group = imagined_group(size);
    const Query query = query_of(operation, count, dtype, op);
    return explanation_of(query, explain_selection(group, query), group.native ? "" : "Gloo");
  });
  // Several kinds may share a name.
  module.def("operations", [] {
    std::vector<std::string> names;
    for (int number = 1; number < kNumOpKinds; ++number) {
      const OperationRow& row = row_of(static_cast<OpKind>(number));
      const bool known =
          std::find(names.begin(), names.end(), op_kind_name(row.kind)) != names.end();
      if (row.kind != OpKind::kOther && !known) names.emplace_back(op_kind_name(row.kind));
    }
    return names;
  });
}

}  // namespace fastcomm
