// Requests over several tensors. A list of small ones is one message on the host: joined before,
// taken apart after. Others are messages of their own, one after the other: joining large ones
// would touch new memory, and copy everything twice more. Each header covers the whole list, so
// that no memory is touched if lists differ.
#include <ATen/ATen.h>

#include <numeric>

#include "c10d/requests/forms.h"
#include "core/error.h"

namespace fastcomm {
namespace {

/// Raises Error(kInvalidArgument) unless there is one.
const at::Tensor& first_of(const char* operation, at::TensorList tensors) {
  FC_CHECK(!tensors.empty(), operation, ": takes at least one tensor");
  return tensors[0];
}

/// Raises Error unless all tensors are dense and of the first one's dtype.
void require_alike(const char* operation, at::TensorList tensors) {
  for (const at::Tensor& tensor : tensors) {
    require_dense(operation, tensor);
    check_dtype(operation, tensors[0], "first tensor", tensor, "other one");
  }
}

/// The least bytes of a tensor, on average, in a list that is not joined. All ranks know the sizes.
constexpr uint64_t kLarge = 256 * 1024;

/// True if a list is joined to one message.
bool is_joined(const Site& site, at::TensorList tensors) {
  const auto add = [](uint64_t sum, const at::Tensor& tensor) { return sum + tensor.nbytes(); };
  return site.home == Home::kHost && std::accumulate(tensors.begin(), tensors.end(), uint64_t{0},
                                                     add) < kLarge * tensors.size();
}

/// True if no call writes memory that another one reads or writes.
bool are_independent(const Calls& calls) {
  const auto overlap = [](const Buffer& a, const Buffer& b) {
    const auto *one = static_cast<const char*>(a.data()),
               *other = static_cast<const char*>(b.data());
    return one < other + b.bytes() && other < one + a.bytes();
  };
  for (const Prepared& writer : calls) {
    for (const Prepared& other : calls) {
      if (&writer == &other) continue;
      for (const Buffer& written : writer.held.outputs) {
        for (const auto* list : {&other.held.inputs, &other.held.outputs}) {
          for (const Buffer& buffer : *list) {
            if (overlap(written, buffer)) return false;
          }
        }
      }
    }
  }
  return true;
}

/// An all_reduce of each tensor; of copies, if tensors of the list overlap.
void reduce_each(const Site& site, const Request& request, Calls& calls, bool copied = false) {
  for (const at::Tensor& tensor : request.outputs) {
    Prepared& made = calls.emplace_back(request.kind, site.home);
    made.reduce(*request.op, tensor);
    const at::Tensor target = copied ? tensor.clone(at::MemoryFormat::Contiguous) : tensor;
    const Buffer buffer = made.write(target);
    made.of(buffer);
    made.compare(request.outputs);
    made.call.input = made.call.output = buffer.data();
    if (!copied) continue;
    made.held.add_steps().before_write_back = [target, tensor] {
      const at::NoGradGuard no_grad;
      tensor.detach().copy_(target);
    };
  }
  if (copied || are_independent(calls)) return;
  calls.clear();
  reduce_each(site, request, calls, true);
}

/// An all_gather of each input; `outputs` has, for each, one tensor or one per rank.
void gather_each(const Site& site, const Request& request, const TensorLists& outputs, Calls& calls,
                 bool copied = false) {
  bool separate = true;
  for (size_t i = 0; i < request.inputs.size(); ++i) {
    Prepared& made = calls.emplace_back(request.kind, site.home);
    const Buffer part = made.read(copied ? request.inputs[i].clone() : request.inputs[i]);
    made.of(part);
    made.compare(request.inputs);
    made.call.input = part.data();
    for (const at::Tensor& output : outputs[i]) {
      auto* at = static_cast<char*>(made.write(output).data());
      for (int k = outputs[i].size() == 1 ? site.size : 1; k > 0; --k, at += part.bytes()) {
        made.call.outputs.push_back(at);
      }
    }
    separate = separate && apart(part.data(), made.call.outputs, part.bytes(), site.rank);
  }
  if (copied || (separate && are_independent(calls))) return;
  calls.clear();
  gather_each(site, request, outputs, calls, true);
}

/// A reduce_scatter of each input.
void scatter_each(const Site& site, const Request& request, Calls& calls, bool copied = false) {
  bool separate = true;
  for (size_t i = 0; i < request.inputs.size(); ++i) {
    Prepared& made = calls.emplace_back(request.kind, site.home);
    made.reduce(*request.op, request.outputs[i]);
    const Buffer sum = made.write(request.outputs[i]);
    made.of(sum);
    made.compare(request.outputs);
    made.call.output = sum.data();
    const Buffer whole = made.read(copied ? request.inputs[i].clone() : request.inputs[i]);
    const auto* part = static_cast<const char*>(whole.data());
    for (int k = 0; k < site.size; ++k, part += sum.bytes()) made.call.inputs.push_back(part);
    separate = separate && apart(sum.data(), made.call.inputs, sum.bytes(), site.rank);
  }
  if (copied || (separate && are_independent(calls))) return;
  calls.clear();
  scatter_each(site, request, calls, true);
}

/// Checks a list per rank of an output per input. Returns, for each input, an output per rank.
TensorLists checked_lists(const Site& site, const Request& request) {
  const char* const name = request.name();
  FC_CHECK(static_cast<int>(request.output_lists.size()) == site.size, name, ": ",
           request.output_lists.size(), " lists of outputs for a group of ", site.size, " ranks");
  TensorLists targets(request.inputs.size());
  for (const Tensors& list : request.output_lists) {
    FC_CHECK(list.size() == request.inputs.size(), name, ": a list of ", list.size(),
             " outputs for ", request.inputs.size(), " inputs");
    for (size_t i = 0; i < list.size(); ++i) {
      check_parts(name, list[i], "output", request.inputs[i], "input", 1);
      targets[i].push_back(list[i]);
    }
  }
  return targets;
}

/// Checks an output per input. Returns the outputs as lists.
TensorLists checked_wholes(const Site& site, const Request& request) {
  const char* const name = request.name();
  FC_CHECK(request.outputs.size() == request.inputs.size(), name, ": ", request.outputs.size(),
           " outputs for ", request.inputs.size(), " inputs");
  TensorLists targets;
  for (size_t i = 0; i < request.inputs.size(); ++i) {
    check_parts(name, request.outputs[i], "output", request.inputs[i], "input", site.size);
    targets.push_back({request.outputs[i]});
  }
  return targets;
}

}  // namespace

void add_all_reduce_coalesced(const Site& site, const Request& request, Calls& calls) {
  const char* const name = request.name();
  require_reduction(name, first_of(name, request.outputs), *request.op);
  for (const at::Tensor& tensor : request.outputs) require_writable(name, tensor);
  require_alike(name, request.outputs);
  is_joined(site, request.outputs) ? add_joined_all_reduce(request, calls)
                                   : reduce_each(site, request, calls);
}

void add_all_gather_coalesced(const Site& site, const Request& request, Calls& calls) {
  first_of(request.name(), request.inputs);
  const TensorLists targets = checked_lists(site, request);
  is_joined(site, request.inputs) ? add_joined_all_gather(site, request, calls)
                                  : gather_each(site, request, targets, calls);
}

void add_all_gather_into_tensor_coalesced(const Site& site, const Request& request, Calls& calls) {
  first_of(request.name(), request.inputs);
  const TensorLists targets = checked_wholes(site, request);
  is_joined(site, request.inputs) ? add_joined_all_gather(site, request, calls)
                                  : gather_each(site, request, targets, calls);
}

void add_reduce_scatter_tensor_coalesced(const Site& site, const Request& request, Calls& calls) {
  const char* const name = request.name();
  const at::TensorList inputs = request.inputs, outputs = request.outputs;
  FC_CHECK(outputs.size() == inputs.size(), name, ": ", outputs.size(), " outputs for ",
           inputs.size(), " inputs");
  require_reduction(name, first_of(name, outputs), *request.op);
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_parts(name, inputs[i], "input", outputs[i], "output", site.size);
    require_dense(name, inputs[i]);
    require_writable(name, outputs[i]);
  }
  require_alike(name, outputs);
  is_joined(site, outputs) ? add_joined_reduce_scatter(site, request, calls)
                           : scatter_each(site, request, calls);
}

}  // namespace fastcomm
