// Lists of tensors as one message on the host.
#include <ATen/ATen.h>

#include <cstring>

#include "c10d/requests/forms.h"
#include "c10d/requests/joined_tensors.h"

namespace fastcomm {
namespace {

void copy(const void* from, void* to, uint64_t bytes) {
  if (bytes != 0) std::memcpy(to, from, bytes);
}

at::Tensor memory_of(uint64_t bytes) {
  return at::empty({static_cast<int64_t>(bytes)}, at::TensorOptions().dtype(at::kByte));
}

/// Sets a message of elements that are reduced.
void set_sums(Call& call, const JoinedTensors& joined) {
  call.dtype = joined.buffers()[0].dtype();
  call.count = joined.bytes() / dtype_size(call.dtype);
}

}  // namespace

void add_joined_all_reduce(const Request& request, Calls& calls) {
  Prepared& made = calls.emplace_back(request.kind, Home::kHost);
  made.reduce(*request.op, request.outputs[0]);
  made.compare(request.outputs);
  const JoinedTensors joined(request.outputs);
  set_sums(made.call, joined);
  made.call.input = made.call.output = joined.data();
  made.held.add_steps().before_write_back = [joined] { joined.write_back(); };
}

void add_joined_all_gather(const Site& site, const Request& request, Calls& calls) {
  Prepared& made = calls.emplace_back(request.kind, Home::kHost);
  made.compare(request.inputs);
  const JoinedTensors own(request.inputs);
  const uint64_t total = own.bytes();
  const at::Tensor all = memory_of(total * static_cast<uint64_t>(site.size));
  const char* const from = static_cast<const char*>(all.const_data_ptr());
  made.call.dtype = DType::kOther;
  made.call.count = total;
  made.call.input = own.data();
  for (int rank = 0; rank < site.size; ++rank) {
    made.call.outputs.push_back(static_cast<char*>(all.data_ptr()) + rank * total);
  }
  for (const at::Tensor& output : request.value()) made.write(output);
  if (!request.output_lists.empty()) {  // rank by rank, and there tensor by tensor
    made.held.add_steps().before_write_back = [own, all, from, to = made.held.outputs] {
      const char* part = from;
      for (const Buffer& output : to) {
        copy(part, output.data(), output.bytes());
        part += output.bytes();
      }
    };
    return;
  }
  made.held.add_steps().before_write_back = [own, all, from, to = made.held.outputs,
                                             size = site.size] {
    const char* part = from;
    for (int rank = 0; rank < size; ++rank) {
      for (const Buffer& output : to) {
        const uint64_t bytes = output.bytes() / static_cast<uint64_t>(size);
        copy(part, static_cast<char*>(output.data()) + static_cast<uint64_t>(rank) * bytes, bytes);
        part += bytes;
      }
    }
  };
}

void add_joined_reduce_scatter(const Site& site, const Request& request, Calls& calls) {
  Prepared& made = calls.emplace_back(request.kind, Home::kHost);
  made.reduce(*request.op, request.outputs[0]);
  made.compare(request.outputs);
  const JoinedTensors sums(request.outputs, /*filled=*/false);
  set_sums(made.call, sums);
  const auto size = static_cast<uint64_t>(site.size);
  // Rank by rank, and there tensor by tensor.
  const at::Tensor parts = memory_of(sums.bytes() * size);
  auto* at = static_cast<char*>(parts.data_ptr());
  std::vector<Buffer> wholes;
  for (const at::Tensor& input : request.inputs) wholes.emplace_back(input);
  for (uint64_t rank = 0; rank < size; ++rank) {
    made.call.inputs.push_back(at);
    for (const Buffer& whole : wholes) {
      const uint64_t bytes = whole.bytes() / size;
      copy(static_cast<const char*>(whole.data()) + rank * bytes, at, bytes);
      at += bytes;
    }
  }
  made.call.output = sums.data();
  made.held.add_steps().before_write_back = [sums, parts] { sums.write_back(); };
}

void add_reduce_scatter_uneven(const Site& site, const Request& request, Calls& calls) {
  // All of them are reduced, and one is kept.
  const Tensors& inputs = request.input_lists[0];
  Prepared& made = calls.emplace_back(OpKind::kReduceScatterUneven, Home::kHost);
  made.reduce(*request.op, request.outputs[0]);
  made.compare(inputs);
  const JoinedTensors joined(inputs);
  const Buffer target = made.write(request.outputs[0]);
  made.call.dtype = target.dtype();
  made.call.count = joined.bytes() / dtype_size(target.dtype());
  made.call.input = made.call.output = joined.data();
  made.held.add_steps().before_write_back = [joined, target,
                                             own = joined.at(static_cast<size_t>(site.rank))] {
    copy(own, target.data(), target.bytes());
  };
}

}  // namespace fastcomm
