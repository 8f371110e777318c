// Operations whose message has a part for each rank: all_gather_into_tensor, reduce_scatter,
// reduce_scatter_tensor. Native where the router says so, else Gloo's.
#include <algorithm>
#include <utility>

#include "c10d/backend.h"
#include "c10d/exception.h"
#include "c10d/launch.h"
#include "c10d/stock_call.h"
#include "c10d/stock_support.h"

namespace fastcomm {
namespace {

using ::c10d::OpType;
using Tensors = FastcommBackend::Tensors;

/// A native reduce_scatter: what is asked for, and what it holds.
struct Prepared {
  Call call;
  Payload payload;
};

/// Whether `part` may be written while the parts of `whole` are read, or the other way round: it shares
/// memory with none of them but the own one, where that is at the same place.
template <class Pointer>
bool apart(const void* part, const std::vector<Pointer>& whole, uint64_t bytes, int rank) {
  const auto* one = static_cast<const char*>(part);
  for (size_t peer = 0; peer < whole.size(); ++peer) {
    const auto* other = static_cast<const char*>(whole[peer]);
    if (static_cast<int>(peer) == rank && other == one) continue;
    if (other < one + bytes && one < other + bytes) return false;
  }
  return true;
}

/// Every rank's part in `inputs`: one tensor of all of them, or one a rank.
void set_inputs(Prepared& made, const Tensors& inputs, int size) {
  made.call.inputs.clear();
  made.payload.buffers.clear();
  for (const at::Tensor& input : inputs) {
    made.payload.buffers.emplace_back(input);
    const auto* part = static_cast<const char*>(made.payload.buffers.back().data());
    for (int k = inputs.size() == 1 ? size : 1; k > 0; --k, part += made.call.bytes()) {
      made.call.inputs.push_back(part);
    }
  }
  made.payload.first_output = inputs.size();
}

Prepared prepare(OpKind kind, const char* title, const at::Tensor& output, const Tensors& inputs,
                 const ::c10d::ReduceOp& op, int rank, int size) {
  Prepared made;
  set_reduction(made.call, op);
  made.call.kind = kind;
  const Buffer target(output);
  made.call.dtype = target.dtype();
  made.call.count = target.count();
  made.call.output = target.data();
  set_inputs(made, inputs, size);
  if (!apart(made.call.output, made.call.inputs, made.call.bytes(), rank)) {
    Tensors copies;
    for (const at::Tensor& input : inputs) copies.push_back(input.clone());
    set_inputs(made, copies, size);
  }
  made.payload.type = ::c10d::OpType::REDUCE_SCATTER;
  made.payload.title = title;
  made.payload.outputs = {output};
  made.payload.buffers.push_back(target);
  return made;
}

bool are_native(const at::Tensor& output, const Tensors& inputs) {
  return is_native_tensor(output) && std::all_of(inputs.begin(), inputs.end(), is_native_tensor);
}

/// Checks what Gloo, and the header that peers compare, would not.
void check_parts(const char* operation, const at::Tensor& whole, const char* whole_name,
                 const at::Tensor& part, const char* part_name, int size) {
  FC_CHECK(whole.scalar_type() == part.scalar_type(), operation, ": the ", whole_name,
           " has dtype ", whole.scalar_type(), ", the ", part_name, " ", part.scalar_type());
  FC_CHECK(whole.numel() == part.numel() * size, operation, ": the ", whole_name, " has ",
           whole.numel(), " elements, which are not ", size, " times the ", part.numel(),
           " of the ", part_name);
}

}  // namespace

FastcommBackend::WorkPtr FastcommBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                          const ::c10d::AllgatherOptions& opts) {
  return translating([&] {
    check_parts("all_gather_into_tensor", output, "output", input, "input", getSize());
    Call call;
    call.kind = OpKind::kAllGatherIntoTensor;
    if (is_native_tensor(output) && is_native_tensor(input)) {
      constexpr const char* kTitle = "fastcomm:all_gather_into_tensor";
      Payload payload{
          OpType::_ALLGATHER_BASE, kTitle, {output}, {Buffer(input), Buffer(output)}, 1};
      const Buffer& part = payload.buffers[0];
      call.dtype = part.dtype();
      call.count = part.count();
      call.input = part.data();
      if (is_native(call)) {
        auto* at = static_cast<char*>(payload.buffers[1].data());
        for (int peer = 0; peer < getSize(); ++peer, at += call.bytes()) {
          call.outputs.push_back(at);
        }
        if (!apart(call.input, call.outputs, call.bytes(), getRank())) {
          payload.buffers[0] = Buffer(input.clone());
          call.input = payload.buffers[0].data();
        }
        return launch(
            call, opts.timeout, opts.asyncOp, kTitle, [&] { payload.write_back(); },
            [&] { return std::move(payload); });
      }
    }
    return through_stock(stock_call(call.kind, Tensors{input, output}), Tensors{output},
                         opts.timeout, opts.asyncOp, OpType::_ALLGATHER_BASE,
                         [output, input, opts](::c10d::Backend& engine) mutable {
                           return engine._allgather_base(output, input, opts);
                         });
  });
}

FastcommBackend::WorkPtr FastcommBackend::sum_parts(OpKind kind, const at::Tensor& output,
                                                    const Tensors& inputs,
                                                    const ::c10d::ReduceScatterOptions& opts,
                                                    StockCall stock) {
  const Query query{kind, dtype_of(c10::toRealValueType(output.scalar_type())),
                    reduce_op_of(opts.reduceOp), output.nbytes()};
  const bool native = are_native(output, inputs);
  if (native) require_reduction(op_kind_name(kind), output, opts.reduceOp);
  if (native && is_native(query)) {
    Prepared made = prepare(kind,
                            kind == OpKind::kReduceScatter ? "fastcomm:reduce_scatter"
                                                           : "fastcomm:reduce_scatter_tensor",
                            output, inputs, opts.reduceOp, getRank(), getSize());
    return launch(
        made.call, opts.timeout, opts.asyncOp, made.payload.title,
        [&] { made.payload.write_back(); }, [&] { return std::move(made.payload); });
  }
  require_stock_all_reduce(output, opts.reduceOp);
  Tensors compared{output};
  compared.insert(compared.end(), inputs.begin(), inputs.end());
  const OpType type =
      kind == OpKind::kReduceScatter ? OpType::REDUCE_SCATTER : OpType::_REDUCE_SCATTER_BASE;
  return through_stock(stock_call(kind, compared, opts.reduceOp), {output}, opts.timeout,
                       opts.asyncOp, type, std::move(stock));
}

FastcommBackend::WorkPtr FastcommBackend::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                                         const ::c10d::ReduceScatterOptions& opts) {
  return translating([&] {
    constexpr const char* kName = "reduce_scatter";
    FC_CHECK(outputs.size() == 1 && inputs.size() == 1, kName,
             ": takes one output and one list of inputs");
    FC_CHECK(static_cast<int>(inputs[0].size()) == getSize(), kName, ": ", inputs[0].size(),
             " inputs for a group of ", getSize(), " ranks");
    for (const at::Tensor& input : inputs[0]) {
      check_parts(kName, input, "input", outputs[0], "output", 1);
    }
    return sum_parts(OpKind::kReduceScatter, outputs[0], inputs[0], opts,
                     [outputs, inputs, opts](::c10d::Backend& engine) mutable {
                       return engine.reduce_scatter(outputs, inputs, opts);
                     });
  });
}

FastcommBackend::WorkPtr FastcommBackend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const ::c10d::ReduceScatterOptions& opts) {
  return translating([&] {
    check_parts("reduce_scatter_tensor", input, "input", output, "output", getSize());
    return sum_parts(OpKind::kReduceScatterTensor, output, {input}, opts,
                     [output, input, opts](::c10d::Backend& engine) mutable {
                       return engine._reduce_scatter_base(output, input, opts);
                     });
  });
}

}  // namespace fastcomm
