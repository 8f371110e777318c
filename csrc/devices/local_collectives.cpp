#if defined(FC_WITH_CUDA) || defined(FC_SHIM)
#include "devices/local_collectives.h"

#include <mutex>

#include "coll/list_plan.h"
#include "core/error.h"
#include "transport/peer_view.h"

namespace fastcomm {
namespace {

/// One list, or one entry, for each rank.
template <class List>
void check_ranks(const char* operation, const char* what, const List& list, int size) {
  FC_CHECK(static_cast<int>(list.size()) == size, operation, ": ", what, " of ", list.size(),
           " ranks, but the group has ", size);
}

template <class List>
void check_tensors(const char* operation, const char* what, const List& list, int rank,
                   size_t tensors) {
  FC_CHECK(list.size() == tensors, operation, ": ", list.size(), " ", what, " of rank ", rank,
           ", but ", tensors, " are expected");
}

void check_root(const char* operation, int root, int size) {
  FC_CHECK(root >= 0 && root < size, operation, ": no rank ", root, " in a group of ", size);
}

void check_types(const char* operation, const ReduceSpec& spec) {
  if (!has_cuda_kernel(spec.in) || !has_cuda_kernel(spec.out)) {
    throw Error(ErrorCode::kUnsupported, concat(operation, ": no CUDA kernel reduces ",
                                                dtype_name(spec.in), " to ", dtype_name(spec.out)));
  }
}

}  // namespace

void LocalCollectives::broadcast(const RankTensors& tensors, const Sizes& bytes, int root,
                                 const Streams& streams) {
  const int size = group_.size();
  check_root("broadcast", root, size);
  check_ranks("broadcast", "tensors", tensors, size);
  for (int rank = 0; rank < size; ++rank) {
    check_tensors("broadcast", "tensors", tensors[rank], rank, bytes.size());
  }
  std::lock_guard<std::mutex> lock(group_.mutex());
  for (size_t t = 0; t < bytes.size(); ++t) {
    CopyJob job{root, tensors[root][t], bytes[t], {}};
    for (int rank = 0; rank < size; ++rank) {
      if (rank != root) job.dst[rank] = tensors[rank][t];
    }
    exchange_.add(job);
  }
  exchange_.run(streams);
}

void LocalCollectives::scatter(const Tensors& pieces, const Tensors& outputs, const Sizes& bytes,
                               int root, const Streams& streams) {
  const int size = group_.size();
  check_root("scatter", root, size);
  check_ranks("scatter", "pieces", pieces, size);
  check_ranks("scatter", "outputs", outputs, size);
  check_ranks("scatter", "sizes", bytes, size);
  std::lock_guard<std::mutex> lock(group_.mutex());
  for (int rank = 0; rank < size; ++rank) {
    CopyJob job{root, pieces[rank], bytes[rank], {}};
    job.dst[rank] = outputs[rank];
    exchange_.add(job);
  }
  exchange_.run(streams);
}

void LocalCollectives::gather(const Tensors& inputs, const Tensors& pieces, const Sizes& bytes,
                              int root, const Streams& streams) {
  const int size = group_.size();
  check_root("gather", root, size);
  check_ranks("gather", "inputs", inputs, size);
  check_ranks("gather", "pieces", pieces, size);
  check_ranks("gather", "sizes", bytes, size);
  std::lock_guard<std::mutex> lock(group_.mutex());
  for (int rank = 0; rank < size; ++rank) {
    CopyJob job{rank, inputs[rank], bytes[rank], {}};
    job.dst[root] = pieces[rank];
    exchange_.add(job);
  }
  exchange_.run(streams);
}

void LocalCollectives::reduce(const RankTensors& inputs, const Tensors& outputs,
                              const Sizes& counts, const ReduceSpec& spec, int root,
                              const Streams& streams) {
  const int size = group_.size();
  check_types("reduce", spec);
  check_root("reduce", root, size);
  check_ranks("reduce", "inputs", inputs, size);
  for (int rank = 0; rank < size; ++rank) {
    check_tensors("reduce", "inputs", inputs[rank], rank, counts.size());
  }
  check_tensors("reduce", "outputs", outputs, root, counts.size());
  const uint64_t in = dtype_size(spec.in);
  const uint64_t out = dtype_size(spec.out);
  std::lock_guard<std::mutex> lock(group_.mutex());
  // Each rank reduces its slice of the list. A line of the narrower type, so that neither side is cut within a line.
  divide_list(counts, size, kLineBytes / smaller(in, out), [&](int owner, size_t t, Span span) {
    ReduceJob job{owner, span.count, {}, root, outputs[t] + span.first * out};
    for (int rank = 0; rank < size; ++rank) job.sources[rank] = inputs[rank][t] + span.first * in;
    exchange_.add(job);
  });
  exchange_.run(streams, spec);
}

}  // namespace fastcomm
#endif
