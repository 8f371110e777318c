// all_reduce of sparse tensors (COO): every rank gets the nonzero elements of every rank, and sums
// them in the order of the fixed tree, in the accumulator's type.
#include <ATen/ATen.h>

#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "c10d/requests/forms.h"
#include "core/numeric.h"
#include "core/signature.h"

namespace fastcomm {

namespace {

/// fp16 and bf16 are summed in fp32.
at::ScalarType accumulator(at::ScalarType type) {
  return type == at::kHalf || type == at::kBFloat16 ? at::kFloat : type;
}

/// Indices, then values, as bytes.
at::Tensor packed(const at::Tensor& sparse) {
  const at::Tensor indices = sparse.indices().contiguous(), values = sparse.values().contiguous();
  at::Tensor bytes = at::empty({static_cast<int64_t>(indices.nbytes() + values.nbytes())},
                               at::TensorOptions().dtype(at::kByte));
  auto* at = static_cast<char*>(bytes.data_ptr());
  if (indices.nbytes() != 0) std::memcpy(at, indices.data_ptr(), indices.nbytes());
  if (values.nbytes() != 0) std::memcpy(at + indices.nbytes(), values.data_ptr(), values.nbytes());
  return bytes;
}

/// The other way round; `like` has the shape and types.
at::Tensor unpacked(const at::Tensor& bytes, const at::Tensor& like) {
  const int64_t dims = like.sparse_dim();
  auto value_sizes = like.values().sizes().vec();
  int64_t value_bytes = static_cast<int64_t>(like.values().element_size());
  for (size_t i = 1; i < value_sizes.size(); ++i) value_bytes *= value_sizes[i];
  const int64_t entry = dims * static_cast<int64_t>(sizeof(int64_t)) + value_bytes;
  const int64_t count = entry == 0 ? 0 : bytes.numel() / entry;
  value_sizes[0] = count;
  at::Tensor indices = at::empty({dims, count}, at::TensorOptions().dtype(at::kLong));
  at::Tensor values = at::empty(value_sizes, at::TensorOptions().dtype(like.scalar_type()));
  const auto* at = static_cast<const char*>(bytes.data_ptr());
  if (indices.nbytes() != 0) std::memcpy(indices.data_ptr(), at, indices.nbytes());
  if (values.nbytes() != 0) std::memcpy(values.data_ptr(), at + indices.nbytes(), values.nbytes());
  return at::sparse_coo_tensor(indices, values.to(accumulator(like.scalar_type())), like.sizes())
      ._coalesced_(true);
}

/// Compares all that determines how a peer's bytes are read.
void compare_sparse(Call& call, const at::Tensor& own) {
  call.signature = mix(call.signature, static_cast<uint64_t>(own.scalar_type()));
  call.signature = mix(call.signature, static_cast<uint64_t>(own.sparse_dim()));
  std::string shape;
  for (const int64_t size : own.sizes()) {
    call.signature = mix(call.signature, static_cast<uint64_t>(size));
    shape += concat(shape.empty() ? "" : ", ", size);
  }
  call.detail = concat("sparse ", c10::getDtypeNames(own.scalar_type()).first, " of shape [", shape,
                       "], sparse in ", own.sparse_dim(), " of its dimensions");
}

/// The tree over terms [first, first + count).
at::Tensor tree_over(const Tensors& terms, int first, int count) {
  if (count == 1) return terms[static_cast<size_t>(first)];
  const int left = tree_left(count);
  return tree_over(terms, first, left).add(tree_over(terms, first + left, count - left));
}

}  // namespace

void add_all_reduce_sparse(const Site& site, const Request& request, Calls& calls) {
  const at::Tensor& tensor = only("all_reduce", request.outputs);
  if (tensor.layout() != at::kSparse || *request.op != ::c10d::ReduceOp::SUM) {
    throw Error(
        ErrorCode::kUnsupported,
        concat("all_reduce(", reduce_op_name(reduce_op_of(*request.op)), ", ", tensor.layout(),
               "): sparse tensors have sum only, in COO layout. Nothing was sent"));
  }
  Prepared& made = calls.emplace_back(OpKind::kAllReduceSparse, Home::kHost);
  set_reduction(made.call, *request.op);
  const at::NoGradGuard no_grad;
  const at::Tensor own = tensor.detach().cpu().coalesce();
  compare_sparse(made.call, own);
  const Buffer sent = made.read(packed(own));
  auto messages = std::make_shared<Messages>(site.size);
  messages->same_for_all = true;
  for (auto& each : messages->sends) {
    each = {static_cast<const char*>(sent.data()), sent.bytes()};
  }
  const auto received = std::make_shared<std::map<int, at::Tensor>>();
  messages->place = [received](int from, uint64_t bytes) {
    at::Tensor& place = (*received)[from];
    place = at::empty({static_cast<int64_t>(bytes)}, at::TensorOptions().dtype(at::kByte));
    return static_cast<char*>(place.data_ptr());
  };
  made.exchange(std::move(messages), site.rank);
  made.held.add_steps().before_write_back = [received, own, tensor] {
    const at::NoGradGuard no_grad_here;
    Tensors terms;
    for (const auto& [rank, bytes] : *received) terms.push_back(unpacked(bytes, own));
    const at::Tensor sum = tree_over(terms, 0, static_cast<int>(terms.size()));
    std::optional<c10::InferenceMode> inference;  // as in Buffer::write_back()
    if (tensor.is_inference()) inference.emplace();
    tensor.copy_(sum.to(tensor.scalar_type()).coalesce());
  };
}

}  // namespace fastcomm
