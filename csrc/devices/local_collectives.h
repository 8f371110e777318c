// The collectives of one process with several CUDA devices, over lists of tensors.
//
// Each is one operation of devices/exchange.h, which says what is ordered before and after it: a
// caller needs only the rank's own stream. Where ranks reach each other's memory it costs one kernel
// a rank, which pulls; a reduction is divided among the ranks by slices of the list, so that all of
// them work and no link carries more than it must:
//
//   operation        rank r's kernel                            bytes into rank r, N a rank, n ranks
//   broadcast        copies the root's tensors to its own       N
//   scatter          copies its piece                           N
//   gather           root: copies all pieces                    (n - 1) N at the root
//   reduce           reduces its slice into the root's tensors  (n - 1) / n N, twice at the root
//
// Sums have the order of the fixed tree over the ranks, whatever the slices, the sizes of the
// tensors and the way the data goes: the bits are the same.
//
// Memory. A rank's pointers are memory of the rank's device; ranks on one device may share tensors.
// A destination may be the source at the same address; nothing else may overlap. Enabled peer access
// covers what cudaMalloc gives. Of memory that is mapped piece by piece (torch's expandable segments,
// cudaMallocAsync) the caller makes sure that it is mapped for the group's other devices too.
//
// Streams are one a rank (devices/device_set.h). All calls only enqueue, and raise Error:
// lists that do not fit together, an unknown root (kInvalidArgument); no kernel (kUnsupported); CUDA
// fails (kSystem). Any thread may call; calls on one group take turns.
#pragma once

#include <cstdint>
#include <vector>

#include "devices/exchange.h"

namespace fastcomm {

using Sizes = std::vector<uint64_t>;       // of tensors, in bytes or elements as named
using Tensors = std::vector<char*>;        // a list of tensors, or one tensor of each rank
using RankTensors = std::vector<Tensors>;  // [rank][tensor]

class LocalCollectives {
 public:
  /// `group` outlives this.
  explicit LocalCollectives(DeviceSet& group) : group_(group), exchange_(group) {}

  /// tensors[root][t] to tensors[r][t] of every rank r.
  void broadcast(const RankTensors& tensors, const Sizes& bytes, int root, const Streams& streams);

  /// pieces[r], in memory of the root, to outputs[r]. bytes[r] of them.
  void scatter(const Tensors& pieces, const Tensors& outputs, const Sizes& bytes, int root,
               const Streams& streams);

  /// inputs[r] to pieces[r], in memory of the root. bytes[r] of them.
  void gather(const Tensors& inputs, const Tensors& pieces, const Sizes& bytes, int root,
              const Streams& streams);

  /// The reduction of inputs[s][t] over the ranks s to outputs[t], in memory of the root. counts[t]
  /// elements. The numbers of sources and destinations of `spec` are not read.
  void reduce(const RankTensors& inputs, const Tensors& outputs, const Sizes& counts,
              const ReduceSpec& spec, int root, const Streams& streams);

 private:
  DeviceSet& group_;
  Exchange exchange_;  // under the group's mutex
};

}  // namespace fastcomm
