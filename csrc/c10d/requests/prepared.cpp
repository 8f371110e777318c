#include "c10d/requests/prepared.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "core/error.h"
#include "core/signature.h"

namespace fastcomm {

namespace {

/// Compares the type, too, if it is moved as bytes.
void note_type(Call& call, const at::Tensor& tensor) {
  if (call.dtype != DType::kOther) return;
  call.signature = mix(call.signature, static_cast<uint64_t>(tensor.scalar_type()));
  call.detail = std::string(c10::getDtypeNames(tensor.scalar_type()).first);
}

}  // namespace

void Prepared::of(const Buffer& message) {
  call.dtype = message.dtype();
  call.count = message.count();
  note_type(call, message.tensor());
}

const Buffer& Prepared::read(const at::Tensor& tensor) {
  require_dense(name(), tensor);
  return held.inputs.emplace_back(tensor, home);
}

const Buffer& Prepared::write(const at::Tensor& tensor) {
  require_writable(name(), tensor);
  return held.outputs.emplace_back(tensor, home);
}

void Prepared::compare(at::TensorList tensors) {
  std::string sizes, types;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& tensor = tensors[i];
    call.signature = mix(call.signature, static_cast<uint64_t>(tensor.scalar_type()));
    call.signature = mix(call.signature, static_cast<uint64_t>(tensor.numel()));
    sizes += concat(sizes.empty() ? "" : ", ", tensor.numel());
    if (i != 0 && tensor.scalar_type() == tensors[i - 1].scalar_type()) continue;
    types += concat(types.empty() ? "" : ", ", c10::getDtypeNames(tensor.scalar_type()).first);
  }
  call.detail += concat(call.detail.empty() ? "" : ", ", "in tensors of [", sizes, "] ", types);
}

void Prepared::exchange(std::shared_ptr<Messages> messages, int rank) {
  // For Home::kTensor, kernels compare the sizes of each pair (engines/cuda/pairs.h).
  if (home == Home::kHost) {
    call.balance = messages->balance(rank);
    if (row_of(call.kind).has_detail && call.detail.empty()) call.detail = messages->describe();
  }
  call.messages = std::move(messages);
}

const at::Tensor& only(const char* operation, at::TensorList tensors) {
  FC_CHECK(tensors.size() == 1, operation, ": takes one tensor a rank, not ", tensors.size());
  return tensors[0];
}

int checked_root(const char* operation, int64_t root, int size) {
  FC_CHECK(root >= 0 && root < size, operation, ": root ", root, " is not a rank of a group of ",
           size);
  return static_cast<int>(root);
}

void check_dtype(const char* operation, const at::Tensor& a, const char* a_name,
                 const at::Tensor& b, const char* b_name) {
  FC_CHECK(a.scalar_type() == b.scalar_type(), operation, ": the ", a_name, " has dtype ",
           a.scalar_type(), ", the ", b_name, " ", b.scalar_type());
}

void check_parts(const char* operation, const at::Tensor& whole, const char* whole_name,
                 const at::Tensor& part, const char* part_name, int parts) {
  check_dtype(operation, whole, whole_name, part, part_name);
  FC_CHECK(whole.numel() == part.numel() * parts, operation, ": the ", whole_name, " has ",
           whole.numel(), " elements, which are not ", parts, " times the ", part.numel(),
           " of the ", part_name);
}

bool are_even(at::TensorList tensors, const at::Tensor& one) {
  return std::all_of(tensors.begin(), tensors.end(),
                     [&](const at::Tensor& tensor) { return tensor.numel() == one.numel(); });
}

bool apart(const Messages& messages, int rank) {
  const auto own = static_cast<size_t>(rank);
  for (size_t from = 0; from < messages.receives.size(); ++from) {
    const auto& written = messages.receives[from];
    for (size_t to = 0; to < messages.sends.size(); ++to) {
      const auto& sent = messages.sends[to];
      if (from == own && to == own && written.data == sent.data) continue;
      if (written.data < sent.data + sent.bytes && sent.data < written.data + written.bytes) {
        return false;
      }
    }
  }
  return true;
}

Tensors clones(at::TensorList tensors) {
  Tensors copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.clone());
  return copies;
}

}  // namespace fastcomm
