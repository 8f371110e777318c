// The steps of a call inside one host, through shared memory.
//
// They are operations of the host's communicator. A rank of the host that called something else is
// found by the first of them: peers compare the user's call and the step's number.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "c10d/engines/hosts/partial_sum.h"
#include "coll/call.h"
#include "coll/messages.h"
#include "engines/cpu/communicator.h"

namespace fastcomm {

/// A user's call on its way.
struct HostCall {
  const Call& call;
  uint64_t sequence;  // compared between hosts
  uint64_t number;    // for messages: of the group's calls
  /// Called every few milliseconds while it waits, and raises what ends the wait: nothing else
  /// does.
  std::function<void()> look;
  uint64_t steps = 0;  // inside the host so far
};

/// Used by one thread. Each step returns when it is done, and raises Error.
class HostInside {
 public:
  explicit HostInside(std::shared_ptr<Communicator> ranks) : ranks_(std::move(ranks)) {}

  int rank() const { return ranks_->rank(); }
  int size() const { return ranks_->size(); }
  int whole_size() const { return ranks_->transport().whole_size(); }

  /// The partial of all ranks' inputs, at rank `root`.
  void reduce(HostCall& call, const PartialSum& sum, const void* input, uint64_t count,
              void* output, int root);
  /// The partial of all ranks' inputs number `rank()`; one for each rank.
  void reduce_scatter(HostCall& call, const PartialSum& sum, std::vector<const void*> inputs,
                      uint64_t count, void* output);
  /// Every rank's input in its output, on all ranks.
  void all_gather(HostCall& call, DType type, const void* input, uint64_t count,
                  std::vector<void*> outputs);
  /// Rank `root`'s data on all ranks.
  void broadcast(HostCall& call, DType type, void* data, uint64_t count, int root);
  /// Messages between these ranks. Fills in what is received, if only the senders know sizes.
  void exchange(HostCall& call, const std::shared_ptr<Messages>& messages);
  void barrier(HostCall& call);

 private:
  void run(HostCall& call, Call step);

  const std::shared_ptr<Communicator> ranks_;
};

}  // namespace fastcomm
