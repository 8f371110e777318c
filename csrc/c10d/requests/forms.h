// The forms of requests: each function adds the calls of some kinds.
//
// Overlapping tensors are copied if their operation does not allow the overlap. All raise
// Error(kInvalidArgument) and Error(kUnsupported).
#pragma once

#include "c10d/requests/prepared.h"
#include "tensors/accelerator.h"

namespace fastcomm {

// even.cpp: every rank's message has the same size.
void add_barrier(const Site& site, const Request& request, Calls& calls);
void add_all_reduce(const Site& site, const Request& request, Calls& calls);
void add_all_reduce_add_rms_norm(const Site& site, const Request& request, Calls& calls);
void add_broadcast(const Site& site, const Request& request, Calls& calls);
void add_reduce(const Site& site, const Request& request, Calls& calls);
/// Lists whose sizes differ: in pairs.
void add_all_gather(const Site& site, const Request& request, Calls& calls);
void add_all_gather_into_tensor(const Site& site, const Request& request, Calls& calls);
/// Lists whose sizes differ: joined, on the host alone.
void add_reduce_scatter(const Site& site, const Request& request, Calls& calls);
void add_reduce_scatter_tensor(const Site& site, const Request& request, Calls& calls);

// rooted.cpp
void add_gather(const Site& site, const Request& request, Calls& calls);
void add_scatter(const Site& site, const Request& request, Calls& calls);

// pairs.cpp: sizes known in pairs (coll/messages.h).
void add_all_to_all(const Site& site, const Request& request, Calls& calls);
void add_all_to_all_single(const Site& site, const Request& request, Calls& calls);
void add_all_gather_uneven(const Site& site, const at::Tensor& input, const Tensors& outputs,
                           Calls& calls);

// lists.cpp: a call for each tensor of a list; each header covers the whole list. On the host,
// small ones are one message.
void add_all_reduce_coalesced(const Site& site, const Request& request, Calls& calls);
void add_all_gather_coalesced(const Site& site, const Request& request, Calls& calls);
void add_all_gather_into_tensor_coalesced(const Site& site, const Request& request, Calls& calls);
void add_reduce_scatter_tensor_coalesced(const Site& site, const Request& request, Calls& calls);

// joined.cpp: lists as one message on the host, for checked arguments.
void add_joined_all_reduce(const Request& request, Calls& calls);
/// `outputs` has, for each rank, one tensor for each input; or, for each input, one of all ranks'
/// parts.
void add_joined_all_gather(const Site& site, const Request& request, Calls& calls);
void add_joined_reduce_scatter(const Site& site, const Request& request, Calls& calls);
void add_reduce_scatter_uneven(const Site& site, const Request& request, Calls& calls);

// sparse.cpp: on the host.
void add_all_reduce_sparse(const Site& site, const Request& request, Calls& calls);

// fused_host.cpp: over lists of gradients, or of parameters.
void add_fused_reduce(const Site& site, const Request& request, Calls& calls);
void add_gather_shards(const Site& site, const Request& request, Calls& calls);

#if defined(FC_DEVICES)
// fused_device.cpp: the same in place.
void add_fused_reduce_there(const Site& site, const Request& request, Calls& calls);
void add_gather_shards_there(const Site& site, const Request& request, Calls& calls);
#endif

}  // namespace fastcomm
