// How operators run late: results get their form now, from torch's Meta kernels; their numbers come
// when the stream gets there, from the CPU's kernels, over views of the devices' memory that keep
// nothing alive.
//
// An operator that Meta cannot do (its results' form depends on the numbers), or that draws random
// numbers, waits for its stream and runs at once.
#pragma once

#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/CPUFallback.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "device.h"

namespace sim {

using Accesses = std::vector<shim::Access>;

/// The bytes of a tensor, run by run.
inline void add_accesses(Accesses& accesses, const at::Tensor& tensor, bool write) {
  if (!tensor.defined() || tensor.numel() == 0) return;
  std::vector<std::pair<int64_t, int64_t>> dims;  // stride, size; the innermost first
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) > 1 && tensor.stride(d) > 0) {
      dims.emplace_back(tensor.stride(d), tensor.size(d));
    }
  }
  std::sort(dims.begin(), dims.end());
  int64_t run = 1;  // elements
  size_t inner = 0;
  for (; inner < dims.size() && dims[inner].first <= run; ++inner) {
    run = dims[inner].first * (dims[inner].second - 1) + run;
  }
  constexpr int64_t kMostRuns = 4096;
  int64_t runs = 1;
  for (size_t d = inner; d < dims.size(); ++d) runs *= dims[d].second;
  if (runs > kMostRuns) {  // as if it were everything in between
    for (; inner < dims.size(); ++inner) run += dims[inner].first * (dims[inner].second - 1);
    runs = 1;
  }
  const auto size = static_cast<int64_t>(tensor.element_size());
  const auto* const begin = static_cast<const char*>(tensor.const_data_ptr());
  for (int64_t i = 0; i < runs; ++i) {
    int64_t offset = 0;
    for (int64_t d = static_cast<int64_t>(inner), rest = i; d < static_cast<int64_t>(dims.size());
         ++d) {
      offset += rest % dims[d].second * dims[d].first;
      rest /= dims[d].second;
    }
    accesses.push_back({reinterpret_cast<uintptr_t>(begin + offset * size),
                        static_cast<uint64_t>(run * size), write});
  }
}

/// The memory of a tensor on a device as a tensor on the CPU, which does not keep it alive.
inline at::Tensor view_on_host(const at::Tensor& tensor) {
  auto view = at::for_blob(Arena::get().on_host(tensor.const_data_ptr()), tensor.sizes())
                  .strides(tensor.strides())
                  .options(tensor.options().device(at::kCPU).pinned_memory(false))
                  .target_device(at::kCPU)
                  .make_tensor();
  view._set_conj(tensor.is_conj());
  view._set_neg(tensor.is_neg());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    view.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return view;
}

/// The numbers of a tensor on the CPU as they are now.
inline at::Tensor copy_on_host(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  auto copy = tensor.detach().clone();
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    copy.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return copy;
}

template <class F>
c10::IValue map_tensors(const c10::IValue& value, const F& f) {
  if (value.isTensor()) {
    return value.toTensor().defined() ? c10::IValue(f(value.toTensor())) : value;
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> out;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      out.push_back(tensor.defined() ? f(tensor) : tensor);
    }
    return out;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> out;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      out.push_back(tensor && tensor->defined() ? std::optional<at::Tensor>(f(*tensor)) : tensor);
    }
    return out;
  }
  return value;
}

/// One call of an operator: its arguments on the stack.
class LateCall {
 public:
  LateCall(const c10::OperatorHandle& op, torch::jit::Stack* stack)
      : op_(op),
        schema_(op.schema()),
        count_(schema_.arguments().size()),
        stack_(stack),
        arguments_(torch::jit::last(*stack, count_).vec()) {}

  /// The one device of its tensors. Raises what CUDA raises where they differ.
  int device() const {
    int found = -1;
    std::string other;
    for (const c10::IValue& value : arguments_) {
      const auto look = [&](const at::Tensor& tensor) {
        if (is_sim(tensor)) {
          if (found >= 0 && tensor.get_device() != found) other = tensor.device().str();
          if (found < 0) found = static_cast<int>(tensor.get_device());
        } else if (value.isTensor() && tensor.is_cpu() && tensor.dim() > 0 && !takes_both()) {
          other = "cpu";
        }
        return tensor;
      };
      // Lists of tensors on many devices are not a single call to a device.
      if (value.isTensorList() && is_foreach()) continue;
      map_tensors(value, look);
    }
    TORCH_CHECK(found < 0 || other.empty(),
                "Expected all tensors to be on the same device, but found at least two devices, "
                "sim:",
                found, " and ", other, "! (", op_.operator_name(), ")");
    return found < 0 ? shim::current_device : found;
  }

  /// Enqueues it and leaves the results on the stack; false: it cannot run late.
  bool enqueue(int device) {
    if (!can_be_late() || !ask_meta()) return false;
    resize_outputs();
    Accesses accesses;
    torch::jit::Stack host = arguments_on_host(accesses);
    std::vector<at::Tensor> results, targets;
    make_results(device, accesses, results, targets);
    launch(current_stream(device), c10::toString(op_.operator_name()).c_str(), std::move(accesses),
           [op = op_, host = std::move(host), targets = std::move(targets)]() mutable {
             run(op, host, targets);
           });
    torch::jit::drop(*stack_, count_);
    for (at::Tensor& result : results) stack_->emplace_back(std::move(result));
    return true;
  }

 private:
  bool is_foreach() const { return schema_.name().rfind("aten::_foreach_", 0) == 0; }
  /// Indices may lie on the CPU.
  bool takes_both() const {
    const std::string& name = schema_.name();
    return name.find("index") != std::string::npos || name == "aten::_copy_from";
  }

  bool can_be_late() const {
    if (op_.hasTag(at::Tag::nondeterministic_seeded)) return false;
    for (const c10::Argument& result : schema_.returns()) {
      if (result.type()->kind() != c10::TypeKind::TensorType) return false;
      if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) return false;
    }
    for (const c10::Argument& argument : schema_.arguments()) {
      if (argument.name() == "generator") return false;
      if (argument.name() == "out" && argument.type()->kind() == c10::TypeKind::ListType) {
        return false;
      }
    }
    if (!is_foreach()) return true;
    for (const c10::IValue& value : arguments_) {  // on one device only
      int device = -1;
      bool one = true;
      map_tensors(value, [&](const at::Tensor& tensor) {
        if (device >= 0 && tensor.get_device() != device) one = false;
        device = static_cast<int>(tensor.get_device());
        return tensor;
      });
      if (!one) return false;
    }
    return true;
  }

  /// The results, as tensors without memory.
  bool ask_meta() {
    std::map<c10::TensorImpl*, at::Tensor> known;
    const auto to_meta = [&](const at::Tensor& tensor) {
      if (tensor.is_cpu() && tensor.dim() == 0) return tensor;  // a number, for Meta kernels too
      at::Tensor& meta = known[tensor.unsafeGetTensorImpl()];
      if (!meta.defined()) {
        meta = at::empty_strided(tensor.sizes(), tensor.strides(),
                                 tensor.options().device(at::kMeta).pinned_memory(false));
        if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
          meta.unsafeGetTensorImpl()->set_wrapped_number(true);
        }
      }
      return meta;
    };
    for (const c10::IValue& value : arguments_) {
      meta_.push_back(value.isDevice() ? c10::IValue(c10::Device(at::kMeta))
                                       : map_tensors(value, to_meta));
    }
    meta_arguments_ = meta_;
    try {
      op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &meta_);
    } catch (const std::exception&) {
      return false;  // no such kernel, the numbers are needed, or wrong: then the CPU says so
    }
    if (schema_.name() == "aten::native_batch_norm" && !arguments_[5].toBool()) {
      // Outside of training nothing is saved; Meta says otherwise.
      for (const size_t saved : {1, 2}) meta_[saved] = meta_[saved].toTensor().new_empty({0});
    }
    return true;
  }

  bool writes(size_t i) const {
    const auto* info = schema_.arguments()[i].alias_info();
    if (info != nullptr && info->isWrite()) return true;
    // Changes its running statistics in training, which its schema does not say.
    return schema_.name() == "aten::native_batch_norm" && (i == 3 || i == 4) &&
           arguments_[5].toBool();
  }

  void resize_outputs() const;

  torch::jit::Stack arguments_on_host(Accesses& accesses) const {
    torch::jit::Stack host;
    for (size_t i = 0; i < count_; ++i) {
      if (arguments_[i].isDevice()) {
        host.emplace_back(c10::Device(at::kCPU));
        continue;
      }
      const bool write = writes(i);
      host.push_back(map_tensors(arguments_[i], [&](const at::Tensor& tensor) {
        if (!is_sim(tensor)) return copy_on_host(tensor);
        add_accesses(accesses, tensor, write);
        return view_on_host(tensor);
      }));
    }
    return host;
  }

  void make_results(int device, Accesses& accesses, std::vector<at::Tensor>& results,
                    std::vector<at::Tensor>& targets) const {
    for (size_t r = 0; r < meta_.size(); ++r) {
      at::Tensor result, target;
      if (const auto* info = schema_.returns()[r].alias_info()) {
        for (size_t i = 0; i < count_; ++i) {
          const auto* of = schema_.arguments()[i].alias_info();
          if (of != nullptr && of->beforeSets() == info->beforeSets()) {
            result = arguments_[i].toTensor();
          }
        }
      } else if (meta_[r].isTensor() && meta_[r].toTensor().defined()) {
        const at::Tensor& form = meta_[r].toTensor();
        const c10::Device place(kSim, static_cast<c10::DeviceIndex>(device));
        result = at::empty_strided(form.sizes(), form.strides(), form.options().device(place));
        add_accesses(accesses, result, /*write=*/true);
        target = view_on_host(result);
      }
      results.push_back(std::move(result));
      targets.push_back(std::move(target));
    }
  }

  /// Gives `out` arguments memory of their own: some kernels resize it on the way. Returns pairs of
  /// destination and stand-in.
  static std::vector<std::pair<at::Tensor, at::Tensor>> stand_in_for_outs(
      const c10::FunctionSchema& schema, torch::jit::Stack& host) {
    std::vector<std::pair<at::Tensor, at::Tensor>> outs;
    for (size_t i = 0; i < host.size(); ++i) {
      const c10::Argument& argument = schema.arguments()[i];
      if (!argument.is_out() || !host[i].isTensor()) continue;
      outs.emplace_back(host[i].toTensor(), host[i].toTensor().clone());
      host[i] = outs.back().second;
    }
    return outs;
  }

  static void run(const c10::OperatorHandle& op, torch::jit::Stack& host,
                  const std::vector<at::Tensor>& targets) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto alive = host;  // kernels that return references drop them before they return
    const auto outs = stand_in_for_outs(op.schema(), host);
    op.callBoxed(&host);
    for (const auto& [view, own] : outs) {
      TORCH_CHECK(view.sizes() == own.sizes(), op.operator_name(),
                  ": the kernels for Meta and for the CPU differ");
      view.copy_(own);
    }
    for (size_t r = 0; r < targets.size(); ++r) {
      if (!targets[r].defined() || !host[r].isTensor() || !host[r].toTensor().defined()) continue;
      TORCH_CHECK(targets[r].sizes() == host[r].toTensor().sizes(), op.operator_name(),
                  ": the kernels for Meta and for the CPU differ");
      targets[r].copy_(host[r].toTensor());
    }
  }

  const c10::OperatorHandle op_;
  const c10::FunctionSchema& schema_;
  const size_t count_;
  torch::jit::Stack* const stack_;
  const torch::jit::Stack arguments_;
  torch::jit::Stack meta_;  // the arguments, then the results
  torch::jit::Stack meta_arguments_;
};

/// The CPU's kernels take the CPU's generators: they get such ones, and the devices' continue where
/// these end.
class LentGenerators {
 public:
  LentGenerators(torch::jit::Stack* stack, size_t count) {
    for (size_t i = stack->size() - count; i < stack->size(); ++i) {
      c10::IValue& value = (*stack)[i];
      if (!value.isGenerator() || value.toGenerator().device().type() != kSim) continue;
      at::Generator lent = at::detail::createCPUGenerator();
      lent.set_state(value.toGenerator().get_state());
      pairs_.emplace_back(value.toGenerator(), lent);
      value = lent;
    }
  }
  ~LentGenerators() {
    for (auto& [own, lent] : pairs_) own.set_state(lent.get_state());
  }
  LentGenerators(const LentGenerators&) = delete;
  LentGenerators& operator=(const LentGenerators&) = delete;

 private:
  std::vector<std::pair<at::Generator, at::Generator>> pairs_;
};

inline void run_operator(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  LateCall call(op, stack);
  const int device = call.device();
  const c10::DeviceGuard on(c10::Device(kSim, static_cast<c10::DeviceIndex>(device)));
  if (call.enqueue(device)) {
    ++counts().late;
    return;
  }
  ++counts().waited;
  synchronize(current_stream(device));
  const LentGenerators lent(stack, op.schema().arguments().size());
  at::native::cpu_fallback(op, stack);
}

}  // namespace sim
